//! A packet as one JSON object: numbers raw as on the wire, text without its padding, fields in the order of the
//! specification.

use mdgw_captures::capture_file::CaptureKind;
use mdgw_feeds::venue::wire::{FieldList, FieldValue, trimmed};
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    dissect::{Framing, LENGTH_BYTES, MessageView, PacketView},
    protocol::AnyMessage,
};

impl Serialize for PacketView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let datagram = &self.datagram;
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("frame", &datagram.frame)?;
        object.serialize_entry("time_ns", &datagram.time_ns)?;
        if self.kind == CaptureKind::Packets {
            object.serialize_entry("frame_len", &datagram.frame_len)?;
            if datagram.captured_len != datagram.frame_len {
                object.serialize_entry("captured_len", &datagram.captured_len)?;
            }
            if !datagram.vlan.ids().is_empty() {
                object.serialize_entry("vlan", datagram.vlan.ids())?;
            }
        }
        object.serialize_entry("src", &datagram.src.ip())?;
        object.serialize_entry("dst", &datagram.dst.ip())?;
        object.serialize_entry("src_port", &datagram.src.port())?;
        object.serialize_entry("dst_port", &datagram.dst.port())?;
        object.serialize_entry("payload_len", &datagram.payload.len())?;
        match self.framing {
            Framing::Unrecognised => object.serialize_entry("header", &())?,
            _ => object.serialize_entry("header", &FieldsObject(|visit: Visit<'_>| _ = self.header(visit)))?,
        }
        object.serialize_entry("messages", &self.messages)?;
        match self.framing {
            Framing::Broken(_, reason) | Framing::BrokenPublished(reason) => {
                object.serialize_entry("refused", reason.name())?
            }
            Framing::Unrecognised => object.serialize_entry("refused", "unrecognised")?,
            Framing::Packet(..) | Framing::UnidentifiedMold(_) | Framing::Published(_) => {}
        }
        serialize_undecoded(&mut object, self.undecoded_bytes())?;
        object.end()
    }
}

impl Serialize for MessageView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("type", &self.message.ok().map(|message| message.name()))?;
        object.serialize_entry("offset", &self.offset)?;
        let length_bytes = if matches!(self.message, Ok(AnyMessage::Published(_))) { 0 } else { LENGTH_BYTES };
        object.serialize_entry("length", &(length_bytes + self.bytes.len()))?;
        let header = |visit: Visit<'_>| {
            if let Ok(AnyMessage::Published(item)) = self.message {
                return item.frame_fields(visit);
            }
            visit("message_length", FieldValue::Number(i128::try_from(self.bytes.len()).unwrap_or(i128::MAX)));
            if let Some(code) = self.bytes.first() {
                visit("message_type", FieldValue::Code(*code));
            }
        };
        object.serialize_entry("header", &FieldsObject(header))?;
        let fields = |visit: Visit<'_>| {
            if let Ok(message) = self.message {
                message.fields(visit);
            }
        };
        object.serialize_entry("fields", &FieldsObject(fields))?;
        if let Err(reason) = self.message {
            object.serialize_entry("refused", reason.name())?;
        }
        serialize_undecoded(&mut object, self.undecoded_bytes())?;
        object.end()
    }
}

fn serialize_undecoded<M: SerializeMap>(object: &mut M, bytes: usize) -> Result<(), M::Error> {
    if bytes > 0 { object.serialize_entry("undecoded_bytes", &bytes) } else { Ok(()) }
}

/// Receives fields.
type Visit<'a> = &'a mut dyn FnMut(&'static str, FieldValue<'_>);

/// Serializes a source of fields as an object.
struct FieldsObject<W>(W);

impl<W: Fn(Visit<'_>)> Serialize for FieldsObject<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        let mut outcome = Ok(());
        (self.0)(&mut |name, value| {
            if outcome.is_ok() {
                outcome = object.serialize_entry(name, &RawValue(value));
            }
        });
        outcome?;
        object.end()
    }
}

/// A field's value: numbers and bits as a number, characters as text, each byte as the character with that code.
struct RawValue<'a>(FieldValue<'a>);

impl Serialize for RawValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let latin_1 = |text: &[u8]| text.iter().map(|byte| char::from(*byte)).collect::<String>();
        match self.0 {
            FieldValue::Number(raw) | FieldValue::Price { raw, .. } | FieldValue::Time { raw, .. } => {
                serializer.serialize_i128(raw)
            }
            FieldValue::Bits(bits) => serializer.serialize_u8(bits),
            FieldValue::Code(code) => serializer.serialize_str(&latin_1(trimmed(&[code]))),
            FieldValue::Text(text) | FieldValue::Symbol(text) => serializer.serialize_str(&latin_1(text)),
            FieldValue::Opaque(bytes) => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                serializer.serialize_str(&digits)
            }
        }
    }
}
