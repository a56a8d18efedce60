//! Numbered slots that are used again.

/// Values under small numbers. A number is used again after its value was taken, so whoever keeps
/// one for longer also keeps the generation.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

/// A number and its generation: stale after the value was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The number.
    pub index: u32,
    generation: u32,
}

impl<T> Slab<T> {
    /// No values.
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Keeps a value.
    pub fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.0 += 1;
            slot.1 = Some(value);
            return Key { index, generation: slot.0 };
        }
        self.slots.push((0, Some(value)));
        Key { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    /// The value, if it is still there.
    pub fn get(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = &mut self.slots[key.index as usize];
        if *generation == key.generation { value.as_mut() } else { None }
    }

    /// The value in use under a number.
    pub fn at(&mut self, index: u32) -> &mut T {
        self.slots[index as usize].1.as_mut().expect("the number is only passed on while the value is in use")
    }

    /// Takes the value out.
    pub fn take(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.free.push(key.index);
        self.slots[key.index as usize].1.take()
    }

    /// Takes the value in use under a number out.
    pub fn take_at(&mut self, index: u32) -> T {
        let generation = self.slots[index as usize].0;
        self.take(Key { index, generation }).expect("the number is only passed on while the value is in use")
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_used_again_does_not_revive_an_old_key() {
        let mut slab = Slab::new();
        let first = slab.insert(1);
        assert_eq!(slab.take(first), Some(1));
        let second = slab.insert(2);
        assert_eq!(first.index, second.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.take_at(second.index), 2);
        assert_eq!(slab.take(second), None);
    }
}
