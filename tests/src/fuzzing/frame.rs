//! The frame decoder, against one that has all bytes at once.

use rpc_core::wire::{Frame, FrameBuffer};

/// Bytes of an oversized message that are kept.
const HEAD: usize = 64;

/// Most room that a buffer may offer beyond what arrived. A frame that announces more gets no more.
const ROOM_MAX: usize = 128 * 1024;

/// What a stream holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Length and bytes of each message; of one over the limit, its beginning.
    messages: Vec<(usize, Vec<u8>)>,
    /// The byte at which it turned out to hold no frames.
    no_frame: Option<u8>,
    mid_message: bool,
}

/// However a stream is cut into reads, its frames are those that it holds as a whole, and the memory taken depends on
/// what arrived and not on what was announced. Two bytes of `data` are the limit, one is the length of the reads, the rest
/// is the stream.
pub fn frame(data: &[u8]) {
    let Some((&[high, low, read], stream)) = data.split_first_chunk::<3>() else { return };
    let limit = usize::from(u16::from_be_bytes([high, low]));
    let expected = all_at_once(stream, limit);
    assert_eq!(in_pieces(stream, limit, usize::from(read) + 1), expected);
}

fn all_at_once(stream: &[u8], limit: usize) -> Seen {
    let mut seen = Seen::default();
    let mut rest = stream;
    while let Some(&first) = rest.first() {
        if first != 0 {
            seen.no_frame = Some(first);
            break;
        }
        seen.mid_message = true;
        let Some((length, body)) = rest.split_first_chunk::<4>() else { break };
        let size = u32::from_be_bytes(*length) as usize;
        let kept = if size > limit { size.min(HEAD) } else { size };
        let Some(message) = body.get(..kept) else { break };
        seen.messages.push((size, message.to_vec()));
        seen.mid_message = body.len() < size;
        rest = &body[size.min(body.len())..];
    }
    seen
}

fn in_pieces(stream: &[u8], limit: usize, read: usize) -> Seen {
    let mut seen = Seen::default();
    let mut buffer = FrameBuffer::new(limit);
    let (mut arrived, mut rest) = (0, stream);
    while !rest.is_empty() && seen.no_frame.is_none() {
        let room = buffer.room();
        assert!(room.len() <= ROOM_MAX + 2 * arrived, "room for {} bytes after {arrived}", room.len());
        let n = read.min(room.len()).min(rest.len());
        room[..n].copy_from_slice(&rest[..n]);
        buffer.filled(n);
        (arrived, rest) = (arrived + n, &rest[n..]);
        loop {
            match buffer.next_frame() {
                Ok(Some(Frame::Message(message))) => seen.messages.push((message.len(), message.to_vec())),
                Ok(Some(Frame::Oversized { size, head })) => {
                    assert!(size > limit);
                    seen.messages.push((size, head.to_vec()));
                }
                Ok(None) => break,
                Err(error) => {
                    seen.no_frame = Some(error.0);
                    break;
                }
            }
        }
        match arrived % 3 {
            0 => buffer.release(),
            1 => buffer.rest(),
            _ => {}
        }
    }
    // After bytes that are no frames nothing can be said.
    seen.mid_message = buffer.is_mid_message() && seen.no_frame.is_none();
    seen
}
