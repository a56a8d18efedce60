//! JSON text to and from values: what serde_json does, with less work for strings.
//!
//! serde_json looks every byte of a string up in a table, to see whether it needs an escape, and hides that
//! loop behind no trait. Here strings are looked at sixteen bytes at a time, which is most of the
//! cost of writing a message. Everything rare is left to serde_json, and the output is the same.

use std::fmt::{self, Write as _};

use serde::de::DeserializeOwned;
use serde::ser::{self, Impossible, Serialize, Serializer};
use serde_json::{Error, Result};

/// How serde_json marks raw text among structs.
const RAW: [&str; 2] = ["$serde_json::private::RawValue", "$serde_json::private::Number"];

/// Writes `value` as JSON, as `serde_json::to_writer` does. After an error the end of `out` is undefined.
///
/// # Errors
/// A value that is no JSON, such as a map with keys that are neither strings nor numbers.
#[inline]
pub fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<()> {
    value.serialize(Writer(out))
}

/// Reads one JSON value, as `serde_json::from_slice` does. The text is checked to be UTF-8 once, and not
/// string by string.
///
/// # Errors
/// Text that is no JSON, or does not fit the type.
#[inline]
pub fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    match std::str::from_utf8(text) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(text),
    }
}

/// Longer keys are looked at when they are written.
const KEY_INLINE: usize = 24;

#[inline]
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    // Most strings need no escape: room for the whole of it.
    out.reserve(text.len() + 2);
    out.push(b'"');
    write_escaped(out, text.as_bytes());
    out.push(b'"');
}

/// A string and a colon. The name of a field is known where this is compiled into its serializer, and with it that
/// nothing needs an escape.
#[expect(clippy::inline_always, reason = "a call would hide the name from the compiler")]
#[inline(always)]
fn write_key(out: &mut Vec<u8>, key: &'static str) {
    if key.len() > KEY_INLINE || key.bytes().any(needs_escape) {
        write_string(out, key);
        return out.push(b':');
    }
    out.reserve(key.len() + 3);
    out.extend_from_slice(b"\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
}

#[inline]
fn write_escaped(out: &mut Vec<u8>, mut text: &[u8]) {
    loop {
        let plain = plain_bytes(text);
        out.extend_from_slice(&text[..plain]);
        let Some(&byte) = text.get(plain) else { return };
        escape(out, byte);
        text = &text[plain + 1..];
    }
}

#[inline]
fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// How many bytes there are before the first that needs an escape.
#[inline]
fn plain_bytes(text: &[u8]) -> usize {
    let (blocks, rest) = text.as_chunks::<16>();
    let mut plain = 0;
    for block in blocks {
        // Without a way out in between, so that the compiler compares all sixteen at once.
        if block.iter().fold(false, |any, &byte| any | needs_escape(byte)) {
            return plain + block.iter().position(|&byte| needs_escape(byte)).unwrap_or(0);
        }
        plain += block.len();
    }
    plain + rest.iter().position(|&byte| needs_escape(byte)).unwrap_or(rest.len())
}

#[cold]
fn escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0a => b'n',
        0x0c => b'f',
        0x0d => b'r',
        _ => {
            let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
            out.extend_from_slice(b"\\u00");
            return out.extend_from_slice(&digits);
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn write_integer(out: &mut Vec<u8>, n: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Writes one value.
struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    fn list(self, closing: &'static [u8]) -> Compound<'a> {
        self.0.push(b'[');
        Compound { out: self.0, first: true, raw: false, closing }
    }

    fn object(self, closing: &'static [u8]) -> Compound<'a> {
        self.0.push(b'{');
        Compound { out: self.0, first: true, raw: false, closing }
    }

    /// The start of an object with one member, whose value follows.
    fn variant(self, name: &str) -> Self {
        self.0.push(b'{');
        write_string(self.0, name);
        self.0.push(b':');
        self
    }
}

macro_rules! integers {
    ($($method:ident $type:ty,)*) => {
        $(#[inline]
        fn $method(self, value: $type) -> Result<()> {
            write_integer(self.0, value);
            Ok(())
        })*
    };
}

impl<'a> Serializer for Writer<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    integers! {
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128,
    }

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<()> {
        self.0.extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<()> {
        serde_json::to_writer(self.0, &value)
    }

    fn serialize_f64(self, value: f64) -> Result<()> {
        serde_json::to_writer(self.0, &value)
    }

    fn serialize_char(self, value: char) -> Result<()> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, value: &str) -> Result<()> {
        write_string(self.0, value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<()> {
        self.collect_seq(value)
    }

    #[inline]
    fn serialize_none(self) -> Result<()> {
        self.serialize_unit()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(self)
    }

    #[inline]
    fn serialize_unit(self) -> Result<()> {
        self.0.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<()> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result<()> {
        self.serialize_str(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<()> {
        let writer = self.variant(variant);
        write_json(writer.0, value)?;
        writer.0.push(b'}');
        Ok(())
    }

    #[inline]
    fn serialize_seq(self, _len: Option<usize>) -> Result<Compound<'a>> {
        Ok(self.list(b"]"))
    }

    #[inline]
    fn serialize_tuple(self, _len: usize) -> Result<Compound<'a>> {
        Ok(self.list(b"]"))
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Compound<'a>> {
        Ok(self.list(b"]"))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Compound<'a>> {
        Ok(self.variant(variant).list(b"]}"))
    }

    #[inline]
    fn serialize_map(self, _len: Option<usize>) -> Result<Compound<'a>> {
        Ok(self.object(b"}"))
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, _len: usize) -> Result<Compound<'a>> {
        if RAW.contains(&name) {
            return Ok(Compound { out: self.0, first: true, raw: true, closing: b"" });
        }
        Ok(self.object(b"}"))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Compound<'a>> {
        Ok(self.variant(variant).object(b"}}"))
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<()> {
        struct Escaping<'a>(&'a mut Vec<u8>);
        impl fmt::Write for Escaping<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                write_escaped(self.0, text.as_bytes());
                Ok(())
            }
        }
        self.0.push(b'"');
        write!(Escaping(self.0), "{value}").map_err(ser::Error::custom)?;
        self.0.push(b'"');
        Ok(())
    }
}

/// The rest of a list or an object.
struct Compound<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
    /// Its only member is JSON text already.
    raw: bool,
    closing: &'static [u8],
}

impl Compound<'_> {
    #[inline]
    fn separate(&mut self) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
    }

    #[inline]
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.separate();
        write_json(self.out, value)
    }

    #[inline]
    fn member<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<()> {
        if self.raw {
            return value.serialize(Text { out: self.out, raw: true });
        }
        self.separate();
        write_key(self.out, key);
        write_json(self.out, value)
    }

    #[inline]
    fn close(self) -> Result<()> {
        self.out.extend_from_slice(self.closing);
        Ok(())
    }
}

macro_rules! compounds {
    ($($trait:ident $method:ident($($key:ident)?) $by:ident,)*) => {
        $(impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Error;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, $($key: &'static str,)? value: &T) -> Result<()> {
                self.$by($($key,)? value)
            }

            #[inline]
            fn end(self) -> Result<()> {
                self.close()
            }
        })*
    };
}

compounds! {
    SerializeSeq serialize_element() element,
    SerializeTuple serialize_element() element,
    SerializeTupleStruct serialize_field() element,
    SerializeTupleVariant serialize_field() element,
    SerializeStruct serialize_field(key) member,
    SerializeStructVariant serialize_field(key) member,
}

impl ser::SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.separate();
        let start = self.out.len();
        if key.serialize(Text { out: self.out, raw: false }).is_err() {
            self.out.truncate(start);
            // A number or the like: serde_json knows which are keys, and how they are written.
            serde_json::to_writer(&mut *self.out, &Entry(key))?;
            self.out.remove(start);
            self.out.truncate(self.out.len() - b":null}".len());
        }
        self.out.push(b':');
        Ok(())
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        write_json(self.out, value)
    }

    #[inline]
    fn end(self) -> Result<()> {
        self.close()
    }
}

/// A map with this key and nothing else.
struct Entry<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Entry<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, ())])
    }
}

/// Writes a string, as it is or as JSON. Everything else is an error.
struct Text<'a> {
    out: &'a mut Vec<u8>,
    raw: bool,
}

macro_rules! no_text {
    ($($method:ident($($type:ty),*) $(<$generic:ident>)? -> $ok:ty,)*) => {
        $(fn $method $(<$generic: Serialize + ?Sized>)? (self, $(_: $type),*) -> Result<$ok> {
            Err(ser::Error::custom("no string"))
        })*
    };
}

impl Serializer for Text<'_> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Impossible<(), Error>;
    type SerializeTuple = Impossible<(), Error>;
    type SerializeTupleStruct = Impossible<(), Error>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Impossible<(), Error>;
    type SerializeStruct = Impossible<(), Error>;
    type SerializeStructVariant = Impossible<(), Error>;

    #[inline]
    fn serialize_str(self, value: &str) -> Result<()> {
        if self.raw {
            self.out.extend_from_slice(value.as_bytes());
        } else {
            write_string(self.out, value);
        }
        Ok(())
    }

    no_text! {
        serialize_bool(bool) -> (),
        serialize_i8(i8) -> (),
        serialize_i16(i16) -> (),
        serialize_i32(i32) -> (),
        serialize_i64(i64) -> (),
        serialize_u8(u8) -> (),
        serialize_u16(u16) -> (),
        serialize_u32(u32) -> (),
        serialize_u64(u64) -> (),
        serialize_f32(f32) -> (),
        serialize_f64(f64) -> (),
        serialize_char(char) -> (),
        serialize_bytes(&[u8]) -> (),
        serialize_none() -> (),
        serialize_some(&T) <T> -> (),
        serialize_unit() -> (),
        serialize_unit_struct(&'static str) -> (),
        serialize_unit_variant(&'static str, u32, &'static str) -> (),
        serialize_newtype_struct(&'static str, &T) <T> -> (),
        serialize_newtype_variant(&'static str, u32, &'static str, &T) <T> -> (),
        serialize_seq(Option<usize>) -> Self::SerializeSeq,
        serialize_tuple(usize) -> Self::SerializeTuple,
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant,
        serialize_map(Option<usize>) -> Self::SerializeMap,
        serialize_struct(&'static str, usize) -> Self::SerializeStruct,
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    fn same<T: Serialize + ?Sized>(value: &T) {
        let mut out = b"before".to_vec();
        let written = write_json(&mut out, value).map_err(|e| e.to_string());
        let expected = serde_json::to_vec(value).map_err(|e| e.to_string());
        assert_eq!(
            written.map(|()| String::from_utf8(out[6..].to_vec()).unwrap()).as_deref().map_err(Clone::clone),
            expected.as_deref().map(|e| std::str::from_utf8(e).unwrap()).map_err(Clone::clone)
        );
    }

    #[derive(Serialize)]
    struct Unit;

    #[derive(Serialize)]
    struct New(u8);

    #[derive(Serialize)]
    struct Pair(u8, &'static str);

    #[derive(Serialize)]
    enum Shape {
        Unit,
        New(i32),
        Tuple(i32, Option<bool>),
        Struct { a: f64, b: () },
    }

    #[derive(Serialize)]
    struct All {
        unit: Unit,
        new: New,
        pair: Pair,
        shapes: Vec<Shape>,
        chars: [char; 3],
        floats: [f32; 2],
        doubles: [f64; 5],
        signed: (i8, i16, i32, i64, i128),
        unsigned: (u8, u16, u32, u64, u128),
        address: std::net::SocketAddr,
        empty: (Vec<u8>, BTreeMap<String, u8>),
        #[serde(skip_serializing_if = "Option::is_none")]
        nothing: Option<u8>,
        raw: Box<RawValue>,
        #[serde(flatten)]
        rest: BTreeMap<String, Value>,
    }

    #[test]
    fn every_kind_of_value_is_written_as_by_serde_json() {
        same(&All {
            unit: Unit,
            new: New(1),
            pair: Pair(2, "two"),
            shapes: vec![Shape::Unit, Shape::New(-1), Shape::Tuple(1, None), Shape::Struct { a: 0.1, b: () }],
            chars: ['a', '"', '\u{1f600}'],
            floats: [0.1, f32::NAN],
            doubles: [0.1, -0.0, 1e300, f64::INFINITY, 3.0],
            signed: (i8::MIN, i16::MIN, i32::MIN, i64::MIN, i128::MIN),
            unsigned: (u8::MAX, u16::MAX, u32::MAX, u64::MAX, u128::MAX),
            address: "127.0.0.1:80".parse().unwrap(),
            empty: Default::default(),
            nothing: None,
            raw: RawValue::from_string("{ \"spaces\" : [1 , 2] }".into()).unwrap(),
            rest: [("more".to_owned(), json!([null, true, {"deep": {}}]))].into(),
        });
        same("a string");
        same(&());
    }

    #[test]
    fn keys_are_written_as_by_serde_json() {
        same(&HashMap::from([(1u64, 'a')]));
        same(&BTreeMap::from([(-1i32, 1), (7, 2)]));
        same(&HashMap::from([(true, 1)]));
        same(&BTreeMap::from([('"', 1), ('x', 2)]));
        same(&HashMap::from([(Some("key"), 1)]));
        // No keys: the same error.
        same(&HashMap::from([((1, 2), 3)]));
        same(&HashMap::from([(None::<u8>, 3)]));
        same(&HashMap::from([(vec![1], 3)]));
    }

    #[test]
    fn names_of_fields_are_written_as_by_serde_json() {
        #[derive(Serialize)]
        struct Names {
            #[serde(rename = "")]
            empty: u8,
            #[serde(rename = "\"quoted\"\n")]
            escaped: u8,
            #[serde(rename = "twenty-four bytes longé")]
            longest_short: u8,
            #[serde(rename = "one that is longer than that, with a \\ in it")]
            long: u8,
            a: Option<&'static str>,
        }
        same(&Names { empty: 1, escaped: 2, longest_short: 3, long: 4, a: Some("b") });
    }

    #[test]
    fn every_byte_is_escaped_at_every_place_as_by_serde_json() {
        for byte in 0..0x80u8 {
            for place in 0..40 {
                let mut text = "x".repeat(40).into_bytes();
                text[place] = byte;
                same(std::str::from_utf8(&text).unwrap());
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_by_serde_json(text in any::<String>(), display in any::<char>()) {
            same(&text);
            let mut out = Vec::new();
            Writer(&mut out).collect_str(&format_args!("{text}{display}")).unwrap();
            prop_assert_eq!(out, serde_json::to_vec(&format!("{text}{display}")).unwrap());
        }

        #[test]
        fn what_is_read_is_what_serde_json_reads(text in prop::collection::vec(any::<u8>(), 0..30), cut in 0usize..40) {
            #[derive(Debug, Deserialize, PartialEq)]
            struct Fields { text: Vec<u8>, name: String }
            let same = |bytes: &[u8]| {
                let (ours, theirs) = (read_json::<Value>(bytes), serde_json::from_slice::<Value>(bytes));
                assert_eq!(ours.map_err(|e| e.to_string()), theirs.map_err(|e| e.to_string()));
                let (ours, theirs) = (read_json::<Fields>(bytes), serde_json::from_slice::<Fields>(bytes));
                assert_eq!(ours.map_err(|e| e.to_string()), theirs.map_err(|e| e.to_string()));
            };
            same(&text);
            let name = String::from_utf8_lossy(&text);
            let whole = serde_json::to_vec(&json!({"text": text, "name": name})).unwrap();
            same(&whole);
            same(&whole[..cut.min(whole.len())]);
        }
    }
}
