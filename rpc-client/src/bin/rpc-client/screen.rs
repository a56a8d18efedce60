//! Text that is replaced in place on a terminal.

use std::io::{self, Write};

/// The lines that were drawn last.
#[derive(Default)]
pub(crate) struct Screen {
    drawn: usize,
}

impl Screen {
    /// Draws `text` over what was drawn before.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub(crate) fn draw(&mut self, out: &mut impl Write, text: &str) -> io::Result<()> {
        let mut bytes = String::new();
        if self.drawn > 0 {
            bytes.push_str(&format!("\x1b[{}A", self.drawn));
        }
        // Lines longer than the terminal are cut, or there would be more of them than counted.
        bytes.push_str("\r\x1b[?7l");
        for line in text.lines() {
            bytes.push_str(line);
            bytes.push_str("\x1b[K\n");
        }
        bytes.push_str("\x1b[J\x1b[?7h");
        self.drawn = text.lines().count();
        out.write_all(bytes.as_bytes())?;
        out.flush()
    }

    /// Takes away what was drawn.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub(crate) fn clear(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.draw(out, "")
    }
}
