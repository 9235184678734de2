//! Table patterns: `*` for any characters, `?` for one, ASCII case ignored as in SQLite's names.
//!
//! Also the tables that frameworks keep for themselves and that are left out unless named.

/// Bookkeeping tables of frameworks and migration tools: state of one program on one machine.
pub(crate) const FRAMEWORK_TABLES: [&str; 22] = [
    "android_metadata",
    "room_master_table",
    "alembic_version",
    "django_migrations",
    "django_session",
    "schema_migrations",
    "schema_version",
    "ar_internal_metadata",
    "__efmigrationshistory",
    "__efmigrationslock",
    "knex_migrations",
    "knex_migrations_lock",
    "goose_db_version",
    "flyway_schema_history",
    "refinery_schema_history",
    "_sqlx_migrations",
    "_prisma_migrations",
    "__diesel_schema_migrations",
    "__drizzle_migrations",
    "sequelizemeta",
    "phinxlog",
    "doctrine_migration_versions",
];

/// Whether `name` fits `pattern`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where to go on when the characters after the last `*` do not fit.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == '?' || c.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            Some(_) | None => {
                let Some((after_star, from)) = retry else { return false };
                retry = Some((after_star, from + 1));
                p = after_star;
                n = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether a pattern names exactly one table.
pub(crate) fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?'])
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_names() {
        let cases = [
            ("*", "", true),
            ("*", "anything", true),
            ("tmp_*", "tmp_a", true),
            ("tmp_*", "TMP_", true),
            ("tmp_*", "xtmp_a", false),
            ("*log", "a_log_log", true),
            ("*log", "a_log_", false),
            ("?", "a", true),
            ("?", "", false),
            ("a?c*e", "abcde", true),
            ("a?c*e", "abcdf", false),
            ("Ä*", "Äb", true),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }
}
