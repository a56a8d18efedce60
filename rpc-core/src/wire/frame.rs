//! The read side of the framing.

use super::first_byte::{NotAFrame, Spoken, spoken};
use super::spare::{READ, give_read, take_read};
use crate::protocol::{LENGTH_BYTES, MESSAGE_BYTES_CEILING};

/// The beginning of a message up to this size is kept in a buffer of its own while more is awaited.
const SMALL: usize = READ / 4;

/// Bytes of an oversized message that are kept, so that its id can be told.
const HEAD: usize = 64;

/// What was read of a connection and not yet taken: messages are parsed where they lie.
///
/// Its memory is lent by the thread for as long as it is of use: see [`FrameBuffer::rest`].
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
    /// What remains to be thrown away of a message over the limit.
    skip: usize,
}

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole message.
    Message(&'a [u8]),
    /// A message over the limit. It is passed over without being stored.
    Oversized {
        /// Its length.
        size: usize,
        /// How it begins.
        head: &'a [u8],
    },
}

impl FrameBuffer {
    /// A buffer that takes messages of up to `limit` bytes. It has no memory before the first read.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, limit: limit.min(MESSAGE_BYTES_CEILING), skip: 0 }
    }

    /// Sets the limit anew, for messages that have not begun.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(MESSAGE_BYTES_CEILING);
    }

    /// Room to read into, never empty.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        if self.bytes.len() < READ {
            self.borrow();
        }
        if self.bytes.len() - self.end < self.bytes.len() / 4 {
            self.make_room();
        }
        &mut self.bytes[self.end..]
    }

    fn borrow(&mut self) {
        let mut bytes = take_read();
        let unread = &self.bytes[self.start..self.end];
        bytes[..unread.len()].copy_from_slice(unread);
        (self.start, self.end) = (0, unread.len());
        self.bytes = bytes;
    }

    #[cold]
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        // Grow only as bytes arrive: a length that promises a large message costs nothing yet.
        if self.bytes.len() - self.end < self.bytes.len() / 4 {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
    }

    /// Says that `n` bytes were read into the room.
    #[inline]
    pub fn filled(&mut self, n: usize) {
        self.end += n;
    }

    /// Says that nothing can be read for now. The memory goes back to the thread, for whoever reads
    /// next; an incomplete message is kept, in as much memory as it needs.
    #[inline]
    pub fn rest(&mut self) {
        let unread = self.end - self.start;
        // What grew beyond the usual size for a large message will be needed for its rest, or for the
        // next one, until `release`.
        if self.bytes.len() == READ && unread <= SMALL {
            let unread = self.bytes[self.start..self.end].to_vec();
            (self.start, self.end) = (0, unread.len());
            give_read(std::mem::replace(&mut self.bytes, unread));
        }
    }

    /// The next message, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`NotAFrame`] if the peer speaks something else; nothing after it can be understood.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, NotAFrame> {
        if self.skip > 0 && !self.skip_rest() {
            return Ok(None);
        }
        let unread = &self.bytes[self.start..self.end];
        let Some(&first) = unread.first() else { return Ok(None) };
        if spoken(first) != Spoken::Frames {
            return Err(NotAFrame(first));
        }
        let Some((length, rest)) = unread.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let size = u32::from_be_bytes(*length) as usize;
        if size > self.limit {
            return Ok(self.oversized(size));
        }
        if rest.len() < size {
            return Ok(None);
        }
        let at = self.start + LENGTH_BYTES;
        self.start = at + size;
        Ok(Some(Frame::Message(&self.bytes[at..at + size])))
    }

    #[cold]
    fn oversized(&mut self, size: usize) -> Option<Frame<'_>> {
        let at = self.start + LENGTH_BYTES;
        let kept = size.min(HEAD);
        if self.end - at < kept {
            return None;
        }
        self.start = at + kept;
        self.skip = size - kept;
        Some(Frame::Oversized { size, head: &self.bytes[at..at + kept] })
    }

    /// Throws away what is left of an oversized message; `true` once nothing is.
    fn skip_rest(&mut self) -> bool {
        let n = self.skip.min(self.end - self.start);
        self.start += n;
        self.skip -= n;
        self.skip == 0
    }

    /// Whether a message has begun that is not complete.
    pub fn is_mid_message(&self) -> bool {
        self.start != self.end || self.skip > 0
    }

    /// Frees all memory if nothing unread is in it.
    pub fn release(&mut self) {
        if self.start == self.end {
            *self = Self { skip: self.skip, ..Self::new(self.limit) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(buffer: &mut FrameBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = buffer.room();
            let n = room.len().min(bytes.len());
            room[..n].copy_from_slice(&bytes[..n]);
            buffer.filled(n);
            bytes = &bytes[n..];
        }
    }

    fn frame(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u32).to_be_bytes(), message].concat()
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_yields_the_same_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 1..8),
            pieces in prop::collection::vec(1usize..5000, 1..20),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|m| frame(m)).collect();
            let mut buffer = FrameBuffer::new(8000);
            let mut seen = Vec::new();
            let (mut rest, mut turn) = (&stream[..], 0);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(pieces[turn % pieces.len()].min(rest.len()));
                feed(&mut buffer, now);
                if turn % 3 == 0 {
                    buffer.rest();
                }
                while let Some(next) = buffer.next_frame().unwrap() {
                    seen.push(match next {
                        Frame::Message(m) => (m.len(), m.to_vec()),
                        Frame::Oversized { size, head } => (size, head.to_vec()),
                    });
                }
                if turn % 2 == 0 {
                    buffer.rest();
                }
                rest = later;
                turn += 1;
            }
            let expected: Vec<_> = messages.iter()
                .map(|m| (m.len(), if m.len() > 8000 { m[..HEAD].to_vec() } else { m.clone() }))
                .collect();
            prop_assert_eq!(seen, expected);
            prop_assert!(!buffer.is_mid_message());
        }
    }

    #[test]
    fn a_length_alone_allocates_nothing_large() {
        let mut buffer = FrameBuffer::new(MESSAGE_BYTES_CEILING);
        feed(&mut buffer, &[0, 0xff, 0xff, 0xff]);
        assert_eq!(buffer.next_frame(), Ok(None));
        assert!(buffer.bytes.len() <= READ);
        buffer.rest();
        assert!(buffer.bytes.capacity() < 100);
        assert!(buffer.is_mid_message());
    }

    #[test]
    fn other_protocols_are_told_by_their_first_byte() {
        let mut buffer = FrameBuffer::new(100);
        feed(&mut buffer, b"GET / HTTP/1.1\r\n");
        assert_eq!(buffer.next_frame(), Err(NotAFrame(b'G')));
    }

    #[test]
    fn a_buffer_without_unread_bytes_holds_no_memory_at_rest() {
        let mut buffer = FrameBuffer::new(100);
        feed(&mut buffer, &frame(b"whole"));
        buffer.next_frame().unwrap();
        buffer.rest();
        assert_eq!(buffer.bytes.capacity(), 0);
    }

    #[test]
    fn memory_is_given_back_only_when_nothing_is_unread() {
        let mut buffer = FrameBuffer::new(100);
        feed(&mut buffer, &[0, 0, 0]);
        buffer.release();
        feed(&mut buffer, &[1, b'x']);
        assert_eq!(buffer.next_frame(), Ok(Some(Frame::Message(b"x"))));
        buffer.release();
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
