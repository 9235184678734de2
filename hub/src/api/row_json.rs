//! A stored row as the API shows it.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::catalog::Dataspace;
use crate::json::ExactColumns;
use crate::plane::StoredRow;

/// A row of a dataspace. A tombstone has `"deleted": true` in place of its values.
pub(super) struct RowJson<'a> {
    pub(super) dataspace: &'a Dataspace,
    pub(super) row: &'a StoredRow,
}

/// What names the row in a URL: its key's text or, in a dataspace without a key, its source.
pub(super) fn row_key(dataspace: &Dataspace, row: &StoredRow) -> String {
    if dataspace.natural_key.is_empty() {
        row.source_id.to_string()
    } else {
        row.natural_key.as_str().to_owned()
    }
}

impl Serialize for RowJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.row;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("row_key", &row_key(self.dataspace, row))?;
        map.serialize_entry("source_id", &row.source_id)?;
        map.serialize_entry("version", &row.version)?;
        map.serialize_entry("event_ts", &row.event_ts.to_string())?;
        map.serialize_entry("updated_at", &row.updated_at.to_string())?;
        if row.deleted {
            map.serialize_entry("deleted", &true)?;
        } else {
            map.serialize_entry("values", &ExactColumns(&row.values))?;
        }
        map.end()
    }
}
