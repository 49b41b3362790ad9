//! Wire structs and the enums over them, written once in the form of the specification's tables.
//!
//! [`wire_struct!`] makes a struct whose fields are in the order of the specification, each with the
//! [kind](FieldValue) of its content. The same table also lists the fields for people and for conformance tests.
//! [`wire_messages!`] makes the enum over a protocol's messages and its parser. The parser checks the type, then the
//! length, then the fields that a book depends on. Nothing is copied: a message is a view of the datagram.

use core::fmt;

use zerocopy::{big_endian, little_endian};

/// Raw content of one field: the value on the wire, without scaling or meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A number: count, identifier.
    Number(i128),
    /// A price in units of its last decimal.
    Price {
        /// The value on the wire.
        raw: i128,
        /// Number of decimals.
        decimals: u8,
    },
    /// A time, as sent, with its unit and origin.
    Time {
        /// The value on the wire.
        raw: i128,
        /// Unit and origin of the time.
        scale: TimeScale,
    },
    /// One character, or a small number that identifies a case.
    Code(u8),
    /// Bits with one meaning each.
    Bits(u8),
    /// Text without trailing spaces and NULs.
    Text(&'a [u8]),
    /// Symbol of an instrument, without trailing spaces and NULs.
    Symbol(&'a [u8]),
    /// Bytes without a meaning.
    Opaque(&'a [u8]),
}

/// Unit and origin of a venue's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeScale {
    /// Nanoseconds since 1970 UTC.
    UnixNs,
    /// Seconds since 1970 UTC.
    UnixS,
    /// Nanoseconds since midnight, New York.
    MidnightNs,
    /// Seconds since midnight, New York.
    MidnightS,
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(raw) | Self::Price { raw, .. } | Self::Time { raw, .. } => write!(f, "{raw}"),
            Self::Code(code) if code.is_ascii_graphic() => write!(f, "'{}'", char::from(code)),
            Self::Code(code) => write!(f, "{code}"),
            Self::Bits(bits) => write!(f, "{bits:#04x}"),
            Self::Text(text) | Self::Symbol(text) => write!(f, "\"{}\"", text.escape_ascii()),
            Self::Opaque(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// Lists a message's fields with the names and in the order of the specification. A name's unit suffix, such as
/// `_e4`, is ours and removed; the message type is left out. For people and tests, not for the hot path.
pub trait FieldList {
    /// Passes each field's name and content to `visit`.
    fn fields(&self, visit: &mut dyn FnMut(&'static str, FieldValue<'_>));
}

/// Text without trailing spaces and NULs. Venues pad with spaces; an empty field may hold NULs.
#[must_use]
pub fn trimmed(text: &[u8]) -> &[u8] {
    let padding = text.iter().rev().take_while(|byte| matches!(byte, b' ' | 0)).count();
    text.get(..text.len().saturating_sub(padding)).unwrap_or_default()
}

/// A field's name without our unit suffix.
pub(crate) fn without_unit(name: &'static str, unit: &str) -> &'static str {
    name.strip_suffix(unit).unwrap_or(name)
}

/// A 48-bit big-endian number, such as Nasdaq's nanoseconds since midnight.
#[inline]
#[must_use]
pub(crate) fn u48_be(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The low 48 bits of a number, big-endian.
#[must_use]
pub fn u48_be_bytes(number: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    [a, b, c, d, e, f]
}

/// A number of any width and byte order.
pub(crate) trait WireNumber {
    /// The number in native byte order.
    fn to_i128(&self) -> i128;
}

macro_rules! wire_numbers {
    ($($number:ty),*) => { $(
        impl WireNumber for $number {
            fn to_i128(&self) -> i128 { i128::from(self.get()) }
        }
    )* };
}
wire_numbers!(big_endian::U16, big_endian::U32, big_endian::U64);
wire_numbers!(little_endian::U16, little_endian::U32, little_endian::U64, little_endian::I64);

impl WireNumber for u8 {
    fn to_i128(&self) -> i128 {
        i128::from(*self)
    }
}

/// A 48-bit number, big-endian.
impl WireNumber for [u8; 6] {
    fn to_i128(&self) -> i128 {
        i128::from(u48_be(*self))
    }
}

/// A struct on the wire with a checked size and a list of its fields.
///
/// ```text
/// wire_struct! {
///     /// Title of the message.
///     pub struct Name: 36 bytes {
///         /// Message type.
///         message_type: u8 as message_type,
///         /// Meaning of the field.
///         field: U32 as number,
///     }
/// }
/// ```
/// Kinds: `message_type` (not listed), `number`, `code`, `bits`, `text`, `symbol`, `opaque`, `fields` (a struct of its
/// own); prices `e4` and `e8`; times `unix_ns`, `unix_s`, `midnight_ns`, `midnight_s`.
macro_rules! wire_struct {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident: $bytes:literal bytes {
            $( $(#[$field_attribute:meta])* $field:ident: $type:ty as $kind:ident, )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_attribute])* pub $field: $type, )*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);

        impl $crate::venue::wire::FieldList for $name {
            fn fields(&self, visit: &mut dyn FnMut(&'static str, $crate::venue::wire::FieldValue<'_>)) {
                $( $crate::venue::wire::wire_field!(visit, stringify!($field), self.$field, $kind); )*
            }
        }
    };
}

/// One field of a [`wire_struct!`] handed to the visitor.
macro_rules! wire_field {
    ($visit:ident, $name:expr, $value:expr, message_type) => {};
    ($visit:ident, $name:expr, $value:expr, fields) => {
        $crate::venue::wire::FieldList::fields(&$value, $visit)
    };
    ($visit:ident, $name:expr, $value:expr, number) => {
        $visit($name, $crate::venue::wire::FieldValue::Number($crate::venue::wire::WireNumber::to_i128(&$value)))
    };
    ($visit:ident, $name:expr, $value:expr, e4) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, price "_e4" 4)
    };
    ($visit:ident, $name:expr, $value:expr, e8) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, price "_e8" 8)
    };
    ($visit:ident, $name:expr, $value:expr, unix_ns) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, time "_ns" UnixNs)
    };
    ($visit:ident, $name:expr, $value:expr, unix_s) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, time "_s" UnixS)
    };
    ($visit:ident, $name:expr, $value:expr, midnight_ns) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, time "_ns" MidnightNs)
    };
    ($visit:ident, $name:expr, $value:expr, midnight_s) => {
        $crate::venue::wire::wire_field!($visit, $name, $value, time "_s" MidnightS)
    };
    ($visit:ident, $name:expr, $value:expr, price $unit:literal $decimals:literal) => {{
        let raw = $crate::venue::wire::WireNumber::to_i128(&$value);
        $visit(
            $crate::venue::wire::without_unit($name, $unit),
            $crate::venue::wire::FieldValue::Price { raw, decimals: $decimals },
        )
    }};
    ($visit:ident, $name:expr, $value:expr, time $unit:literal $scale:ident) => {{
        let (raw, scale) =
            ($crate::venue::wire::WireNumber::to_i128(&$value), $crate::venue::wire::TimeScale::$scale);
        $visit(
            $crate::venue::wire::without_unit($name, $unit),
            $crate::venue::wire::FieldValue::Time { raw, scale },
        )
    }};
    ($visit:ident, $name:expr, $value:expr, code) => {
        $visit($name, $crate::venue::wire::FieldValue::Code($value))
    };
    ($visit:ident, $name:expr, $value:expr, bits) => {
        $visit($name, $crate::venue::wire::FieldValue::Bits($value))
    };
    ($visit:ident, $name:expr, $value:expr, text) => {
        $visit($name, $crate::venue::wire::FieldValue::Text($crate::venue::wire::trimmed(&$value)))
    };
    ($visit:ident, $name:expr, $value:expr, symbol) => {
        $visit($name, $crate::venue::wire::FieldValue::Symbol($crate::venue::wire::trimmed(&$value)))
    };
    ($visit:ident, $name:expr, $value:expr, opaque) => {
        $visit($name, $crate::venue::wire::FieldValue::Opaque(zerocopy::IntoBytes::as_bytes(&$value)))
    };
}

/// The messages of a protocol: an enum of views, and the parser.
///
/// ```text
/// wire_messages! {
///     /// One message.
///     pub enum Message, exact {
///         /// Title.
///         b'A' => Variant(Struct) if check_function,
///     }
/// }
/// ```
/// `exact`: a message has the length of its struct. `growing`: it may be longer, and further bytes are ignored. `else
/// Other` after it: types outside the table are parsed by the enum `Other`, as a variant of that name.
macro_rules! wire_messages {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident, $length:ident $(, else $other:ident)? {
            $( $(#[$variant_attribute:meta])* $code:literal => $variant:ident($struct:ident) $(if $check:path)?, )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name<'a> {
            $( $(#[$variant_attribute])* $variant(&'a $struct), )*
            $(
                /// A message of a type that this table lacks, parsed by the other enum.
                $other($other<'a>),
            )?
        }

        impl<'a> $name<'a> {
            /// Parses the bytes as the message type in their first byte.
            ///
            /// # Errors
            /// [`DropReason`](mdgw_wire::drop_reason::DropReason): `MessageTypeUnknown`; `MessageLength` if the length
            /// does not match the type (an empty message has none); `FieldInvalid` if a field that a book depends on
            /// has an invalid value.
            // Always inlined, so that the compiler merges the caller's match with this one and dispatches a message
            // once.
            #[inline(always)]
            pub fn parse(message: &'a [u8]) -> Result<Self, ::mdgw_wire::drop_reason::DropReason> {
                use ::mdgw_wire::drop_reason::DropReason;
                match message.first() {
                    $( Some(&$code) => {
                        let view = $crate::venue::wire::wire_view!($struct, message, $length)
                            .ok_or(DropReason::MessageLength)?;
                        $( if !$check(view) {
                            return Err(DropReason::FieldInvalid);
                        } )?
                        Ok(Self::$variant(view))
                    } )*
                    Some(_) => $crate::venue::wire::wire_unlisted!(message $(, $other)?),
                    None => Err(DropReason::MessageLength),
                }
            }

            /// The message types of this table with the name and the length of the struct, in the order of the
            /// specification.
            pub const TYPES: &'static [(u8, &'static str, usize)] =
                &[$( ($code, stringify!($variant), size_of::<$struct>()) ),*];

            /// Name of the message.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => stringify!($variant), )*
                    $( Self::$other(message) => message.name(), )?
                }
            }

            /// The message's first bytes as a `P`; `None` if `P` is longer than the message. Where all messages are
            /// longer than `P`, the compiler removes that case.
            #[inline]
            #[must_use]
            pub fn prefix_as<P>(&self) -> Option<&'a P>
            where
                P: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
            {
                match *self {
                    $( Self::$variant(view) => {
                        P::ref_from_prefix(zerocopy::IntoBytes::as_bytes(view)).ok().map(|(prefix, _)| prefix)
                    } )*
                    $( Self::$other(message) => message.prefix_as(), )?
                }
            }

            /// The message's bytes, as far as this specification defines them.
            #[must_use]
            pub fn as_bytes(&self) -> &'a [u8] {
                match *self {
                    $( Self::$variant(view) => zerocopy::IntoBytes::as_bytes(view), )*
                    $( Self::$other(message) => message.as_bytes(), )?
                }
            }
        }

        impl $crate::venue::wire::FieldList for $name<'_> {
            fn fields(&self, visit: &mut dyn FnMut(&'static str, $crate::venue::wire::FieldValue<'_>)) {
                match self {
                    $( Self::$variant(view) => $crate::venue::wire::FieldList::fields(*view, visit), )*
                    $( Self::$other(message) => $crate::venue::wire::FieldList::fields(message, visit), )?
                }
            }
        }
    };
}

/// A view of a message as a struct, checked by the rule for its length.
macro_rules! wire_view {
    ($struct:ident, $message:expr, exact) => {
        <$struct as zerocopy::FromBytes>::ref_from_bytes($message).ok()
    };
    ($struct:ident, $message:expr, growing) => {
        <$struct as zerocopy::FromBytes>::ref_from_prefix($message).ok().map(|(view, _)| view)
    };
}

/// A message type outside the table.
macro_rules! wire_unlisted {
    ($message:expr) => {
        Err(::mdgw_wire::drop_reason::DropReason::MessageTypeUnknown)
    };
    ($message:expr, $other:ident) => {
        $other::parse($message).map(Self::$other)
    };
}

pub(crate) use {wire_field, wire_messages, wire_struct, wire_unlisted, wire_view};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_padding_is_trimmed_and_leading_kept() {
        for (raw, text) in [
            (&b"AB  "[..], &b"AB"[..]),
            (b" AB\0", b" AB"),
            (b"A B\0 \0", b"A B"),
            (b"    ", b""),
            (b"\0\0", b""),
            (b"", b""),
            (b"ABCD", b"ABCD"),
        ] {
            assert_eq!(trimmed(raw), text);
        }
    }

    #[test]
    fn field_values_are_displayed_raw() {
        let shown = [
            FieldValue::Number(-5),
            FieldValue::Price { raw: 12_345, decimals: 4 },
            FieldValue::Time { raw: 7, scale: TimeScale::MidnightNs },
            FieldValue::Symbol(b"AB"),
            FieldValue::Code(b'A'),
            FieldValue::Code(0),
            FieldValue::Bits(0xc0),
            FieldValue::Text(b"A\"B\x07"),
            FieldValue::Opaque(&[0, 255]),
        ]
        .map(|value| value.to_string());
        assert_eq!(shown, ["-5", "12345", "7", "\"AB\"", "'A'", "0", "0xc0", r#""A\"B\x07""#, "00ff"]);
    }
}
