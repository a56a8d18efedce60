//! What a peer speaks: the one place where its first byte decides.

/// What a peer speaks, as its first byte tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// This protocol, without TLS: no message is longer than 16 MiB, so its length begins with 0.
    Frames,
    /// TLS: a handshake record, or an alert.
    Tls,
    /// Something else, such as HTTP.
    Other,
}

/// What `first`, the first byte of a connection or of a message, belongs to.
#[inline]
pub fn spoken(first: u8) -> Spoken {
    match first {
        0 => Spoken::Frames,
        0x15 | 0x16 => Spoken::Tls,
        _ => Spoken::Other,
    }
}

/// The peer does not speak this protocol: a frame's first byte is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct NotAFrame(pub u8);

impl NotAFrame {
    fn text(self) -> String {
        match spoken(self.0) {
            Spoken::Tls => "the peer speaks TLS, which this side does not".into(),
            Spoken::Frames | Spoken::Other => format!("the peer does not send frames (first byte {:#04x})", self.0),
        }
    }
}
