//! Buffers that wait for their next use.
//!
//! A connection holds a buffer only while it has something in it: a hundred thousand connections that
//! are at rest, or between two messages, share a handful. They are kept per thread, so that lending one
//! takes no lock and finds it in the cache.

use std::cell::RefCell;

/// Size of the buffers that reads go into. Larger ones were measured to gain nothing.
pub(super) const READ: usize = 64 * 1024;

/// A buffer to write into that grew beyond this is not kept.
const WRITE_MAX: usize = 256 * 1024;

/// A reply's body that is larger than this is not kept.
const BODY_MAX: usize = 8 * 1024;

/// Bodies of replies that a thread keeps: those of one full read, more or less.
const BODIES_KEPT: usize = 256;

/// Other buffers of a kind that a thread keeps. One is enough as long as no connection has to hold on to its
/// own, as when a peer takes only part of a write.
const KEPT: usize = 4;

#[derive(Default)]
struct Spare {
    read: Vec<Vec<u8>>,
    write: Vec<Vec<u8>>,
    bodies: Vec<Vec<u8>>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// Lends `READ` bytes.
pub(super) fn take_read() -> Vec<u8> {
    // After the thread's end there is nothing to lend, and nobody who needs it twice.
    let kept = SPARE.try_with(|spare| spare.borrow_mut().read.pop());
    kept.ok().flatten().unwrap_or_else(|| vec![0; READ])
}

/// Takes back what [`take_read`] lent.
pub(super) fn give_read(bytes: Vec<u8>) {
    let _ = SPARE.try_with(|spare| keep(&mut spare.borrow_mut().read, bytes, KEPT));
}

/// Lends an empty buffer to write into.
pub fn take_write_buffer() -> Vec<u8> {
    SPARE.try_with(|spare| spare.borrow_mut().write.pop()).ok().flatten().unwrap_or_default()
}

/// Takes a buffer back, whether it was lent or not; what is in it is thrown away.
pub fn give_write_buffer(mut bytes: Vec<u8>) {
    if (1..=WRITE_MAX).contains(&bytes.capacity()) {
        bytes.clear();
        let _ = SPARE.try_with(|spare| keep(&mut spare.borrow_mut().write, bytes, KEPT));
    }
}

/// Lends an empty buffer for the body of a reply.
pub fn take_body() -> Vec<u8> {
    SPARE.try_with(|spare| spare.borrow_mut().bodies.pop()).ok().flatten().unwrap_or_default()
}

/// Takes the body of a reply back; what is in it is thrown away.
pub fn give_body(mut bytes: Vec<u8>) {
    if (1..=BODY_MAX).contains(&bytes.capacity()) {
        bytes.clear();
        let _ = SPARE.try_with(|spare| keep(&mut spare.borrow_mut().bodies, bytes, BODIES_KEPT));
    }
}

fn keep(kept: &mut Vec<Vec<u8>>, bytes: Vec<u8>, most: usize) {
    if kept.len() < most {
        kept.push(bytes);
    }
}
