-- The mutable store: rows live in tables of their own, one a dataspace, made on first use.
-- marks: one line each time the store is opened to serve. The state store remembers the newest, so
-- that a mutable store that was replaced, or restored from a backup, is noticed.

CREATE TABLE marks (ordinal INTEGER PRIMARY KEY, mark BLOB NOT NULL UNIQUE);
