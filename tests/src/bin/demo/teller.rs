//! How the story looks on a terminal: numbered steps, facts below them, a tick when they held.

use std::time::Instant;

/// Tells the story.
pub(crate) struct Teller {
    step: usize,
    started: Instant,
    colour: bool,
    indent: &'static str,
}

impl Teller {
    pub(crate) fn new() -> Self {
        use std::io::IsTerminal as _;
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { step: 0, started: Instant::now(), colour, indent: "   " }
    }

    /// Opens a step.
    pub(crate) fn step(&mut self, title: &str) {
        self.step += 1;
        let seconds = self.started.elapsed().as_secs_f64();
        println!(
            "\n{} {title}  {}",
            self.bold(&format!("{}.", self.step)),
            self.dim(&format!("{seconds:.1} s"))
        );
    }

    /// Says something about the step.
    pub(crate) fn say(&self, text: &str) {
        for line in text.lines() {
            println!("{}{line}", self.indent);
        }
    }

    /// Says what was checked and held.
    pub(crate) fn held(&self, text: &str) {
        println!("{}{} {text}", self.indent, self.paint("32", "ok"));
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
