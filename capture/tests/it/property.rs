//! Random scripts: an application writes three tables with different keys while an agent with
//! random bounds folds, sends, loses receipts, forgets batches and dies between any two steps. In
//! the end hub and file are equal, nothing waits, and no (row, version) had two contents.

use proptest::collection::vec;
use proptest::prelude::*;
use sync_proto::message::{Control, TableState};
use sync_proto::session::OutBatch;

use crate::model::{Device, Hub, rows_of};

const SCHEMA: &str = "
    CREATE TABLE a(id INTEGER PRIMARY KEY, v);
    CREATE TABLE b(k TEXT, n INTEGER, v, PRIMARY KEY(k, n)) WITHOUT ROWID;
    CREATE TABLE c(k PRIMARY KEY, v) ;
    INSERT INTO a VALUES(1, 'there before'), (2, 'too');
    INSERT INTO c(k, v) VALUES(1, 'int'), ('1', 'text'), (x'31', 'blob');";

#[derive(Clone, Debug)]
enum Step {
    /// The application commits statements.
    Write(Vec<String>),
    /// The application changes its mind.
    Rollback(Vec<String>),
    Housekeep,
    Fill {
        batches: usize,
        bytes: usize,
    },
    /// A batch on its way arrives, and its receipt too.
    Deliver(usize),
    /// A batch arrives, and its receipt gets lost.
    DeliverUnheard(usize),
    /// The same bytes arrive twice, and both receipts come.
    DeliverTwice(usize),
    /// The session greets again and forgets what is on its way.
    Greet,
    /// The agent dies and comes back.
    Reopen,
    Bounds(usize),
    /// An operator holds a table, or lets it flow again.
    Pause(usize),
    Resume,
    /// Every row of a table again.
    Reseed(usize),
    /// The hub closes the epoch.
    CloseEpoch,
    /// The hub comes back with nothing.
    LoseHub,
    /// The application adds a column with a value, which changes every row without a trigger.
    AddColumn(usize),
    /// The application builds a table anew, and its triggers die with the old one.
    Rebuild,
}

const TABLES: [&str; 3] = ["a", "b", "c"];

fn statement() -> impl Strategy<Value = String> {
    let (id, k, n, v) = (0..6_i64, 0..4_u8, 0..3_i64, 0..50_u32);
    (0..13_u8, id, k, n, v).prop_map(|(kind, id, k, n, v)| {
        let c = ["1", "'1'", "x'31'", "2.5"][usize::from(k)];
        match kind {
            0 | 1 => format!("INSERT OR REPLACE INTO a(id, v) VALUES({id}, 'v{v}')"),
            2 => format!("UPDATE a SET v = {v} WHERE id = {id}"),
            3 => format!("UPDATE OR IGNORE a SET id = {} WHERE id = {id}", id + 1),
            4 => format!("DELETE FROM a WHERE id = {id}"),
            5 => format!("INSERT OR IGNORE INTO b(k, n, v) VALUES('k{k}', {n}, {v})"),
            6 => format!("UPDATE OR IGNORE b SET k = 'k{n}', v = {v} WHERE n = {n}"),
            7 => format!("DELETE FROM b WHERE k = 'k{k}'"),
            8 => format!(
                "INSERT INTO c(k, v) VALUES({c}, {v}) ON CONFLICT DO UPDATE SET v = {v} + 1"
            ),
            9 => format!("UPDATE OR IGNORE c SET k = {c} WHERE v = {v}"),
            10 => format!("DELETE FROM c WHERE k = {c}"),
            11 => "DELETE FROM b".to_owned(),
            _ => format!("UPDATE c SET v = {v}"),
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => vec(statement(), 1..6).prop_map(Step::Write),
        1 => vec(statement(), 1..4).prop_map(Step::Rollback),
        3 => Just(Step::Housekeep),
        4 => (1..4_usize, prop_oneof![Just(1_usize), Just(60), Just(100_000)])
            .prop_map(|(batches, bytes)| Step::Fill { batches, bytes }),
        4 => (0..8_usize).prop_map(Step::Deliver),
        2 => (0..8_usize).prop_map(Step::DeliverUnheard),
        1 => (0..8_usize).prop_map(Step::DeliverTwice),
        1 => Just(Step::Greet),
        2 => Just(Step::Reopen),
        1 => (0..3_usize).prop_map(Step::Pause),
        1 => Just(Step::Resume),
        1 => (0..3_usize).prop_map(Step::Reseed),
        1 => (0..40_u8).prop_map(|n| match n {
            0..10 => Step::CloseEpoch,
            10..20 => Step::LoseHub,
            20..30 => Step::Rebuild,
            _ => Step::AddColumn(usize::from(n % 3)),
        }),
        1 => prop_oneof![Just(1_usize), Just(2), Just(7), Just(4096)].prop_map(Step::Bounds),
    ]
}

fn run(steps: Vec<Step>) {
    let mut play = Play { device: Device::new(SCHEMA), on_the_way: Vec::new(), columns: 0 };
    for step in steps {
        play.take(step);
    }
    let mut device = play.device;
    device.hub.states.clear();
    device.greet();
    device.sync();
    assert_equal_but_absent(&mut device);
    device.assert_equal("b", &["k", "n"]);
    device.assert_equal("c", &["k"]);
    assert_eq!(device.waiting(), (0, 0));
    assert_eq!(device.hub.counts.get("diverged"), None);
}

struct Play {
    device: Device,
    on_the_way: Vec<OutBatch>,
    columns: u32,
}

impl Play {
    fn take(&mut self, step: Step) {
        let device = &mut self.device;
        match step {
            Step::Write(sql) => device.sql(&format!("BEGIN; {}; COMMIT", sql.join(";"))),
            Step::Rollback(sql) => device.sql(&format!("BEGIN; {}; ROLLBACK", sql.join(";"))),
            Step::AddColumn(at) => self.add_column(TABLES[at]),
            Step::Rebuild => self.rebuild(),
            Step::Housekeep => drop(device.capture.housekeep().unwrap()),
            Step::Fill { batches, bytes } => {
                self.on_the_way.extend(device.fill_sized(batches, bytes));
            }
            Step::Deliver(_) | Step::DeliverUnheard(_) | Step::DeliverTwice(_) => {
                self.deliver(&step);
            }
            Step::Bounds(entries) => device.set_bounds(entries),
            Step::Reseed(at) => capture::reseed(&device.path(), TABLES[at]).unwrap(),
            Step::Reopen => {
                device.reopen();
                self.on_the_way.clear();
            }
            Step::Greet => self.greet(),
            Step::Pause(at) => {
                let table = TABLES[at].to_owned();
                device.hub.states.insert(table.clone(), TableState::Paused);
                device.capture.obey(&Control::Pause { table }).unwrap();
                // Its rows may be in batches on their way: they are built anew.
                self.greet();
            }
            Step::Resume => {
                device.hub.states.clear();
                self.greet();
            }
            Step::CloseEpoch => {
                let epoch = device.capture.facts().unwrap().hello.epoch;
                device.capture.start_epoch(epoch, "the test says so").unwrap();
                self.greet();
            }
            Step::LoseHub => {
                let states = std::mem::take(&mut device.hub.states);
                device.hub = Hub::new();
                device.hub.states = states;
                self.greet();
            }
        }
    }

    fn greet(&mut self) {
        self.device.greet();
        self.on_the_way.clear();
    }

    fn deliver(&mut self, step: &Step) {
        let (Step::Deliver(at) | Step::DeliverUnheard(at) | Step::DeliverTwice(at)) = step else {
            return;
        };
        if self.on_the_way.is_empty() {
            return;
        }
        let batch = self.on_the_way.remove(at % self.on_the_way.len());
        if let Step::DeliverUnheard(_) = step {
            self.device.hub.take(&batch.frame);
            // The session sends the same bytes again until it hears of them.
            self.on_the_way.push(batch);
            return;
        }
        self.device.deliver(&batch);
        if let Step::DeliverTwice(_) = step {
            self.device.deliver(&batch);
        }
    }

    fn add_column(&mut self, table: &str) {
        self.columns += 1;
        let n = self.columns;
        self.device.sql(&format!("ALTER TABLE {table} ADD COLUMN x{n} DEFAULT {n}"));
    }

    fn rebuild(&mut self) {
        self.device.sql(
            "BEGIN; CREATE TABLE new(id INTEGER PRIMARY KEY, v);
             INSERT INTO new SELECT id, v || '.' FROM a; DROP TABLE a;
             ALTER TABLE new RENAME TO a; COMMIT",
        );
        // What is deleted before the triggers are back is for a reconcile to find.
        self.device.capture.housekeep().unwrap();
    }
}

/// A key that was logged before a rebuild and is not in the new table is set aside, whatever the
/// hub holds of it; everything else is equal.
fn assert_equal_but_absent(device: &mut Device) {
    let mut live = device.hub.live("a");
    let there = rows_of(&device.app(), "a", &["id"]);
    for (table, key, code) in device.parked() {
        assert_eq!((table.as_str(), code.as_str()), ("a", "row_absent"));
        assert!(!there.contains_key(&key), "{key} is there");
        live.remove(&key);
    }
    assert_eq!(live, there);
}

/// So many cases, unless `PROPTEST_CASES` asks for another number.
fn cases(cases: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    if asked { ProptestConfig::default() } else { ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn hub_and_file_end_equal(steps in vec(step(), 1..60)) {
        run(steps);
    }
}
