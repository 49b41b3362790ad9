//! Writes rows into a Parquet file, row group by row group.
//!
//! Types are those of the official client's data frame: prices are doubles or null, times are UTC timestamps in
//! nanoseconds, codes and symbols are text. The file is compressed with Snappy, which every reader supports.

use std::{io, sync::Arc};

use ::parquet::{
    basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType},
    column::writer::ColumnWriter,
    data_type::ByteArray,
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::types::Type,
};
use dbn::RType;

use super::{
    Output,
    columns::{Column, Kind, columns_of},
};

/// A Parquet file that is being written.
pub(super) struct Rows {
    /// `None` until the columns are known.
    pending_output: Option<Output>,
    file: Option<ParquetFile>,
    pretty: bool,
    map_symbols: bool,
}

struct ParquetFile {
    file: SerializedFileWriter<Output>,
    columns: Vec<Column>,
    /// Columns of the current row group; the symbol column, if requested, is last.
    values: Vec<Values>,
    rows: usize,
}

/// Values of a column: the values present, and for each row whether it has one.
struct Values {
    data: Data,
    /// `None` if every row has a value.
    present: Option<Vec<i16>>,
}

enum Data {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Double(Vec<f64>),
    Text(Vec<ByteArray>),
}

impl Rows {
    /// Begins a file; its columns are those of `rtype`, or of the first record.
    pub(super) fn begin(output: Output, rtype: Option<RType>, pretty: bool, map_symbols: bool) -> io::Result<Self> {
        let mut rows = Self { pending_output: Some(output), file: None, pretty, map_symbols };
        if let Some(rtype) = rtype {
            rows.begin_writing(rtype)?;
        }
        Ok(rows)
    }

    pub(super) fn write(&mut self, record: &[u8], rtype: RType, symbol: Option<&str>) -> io::Result<()> {
        if self.file.is_none() {
            self.begin_writing(rtype)?;
        }
        let Some(writing) = &mut self.file else { return Ok(()) };
        writing.push(record, symbol);
        if writing.rows >= ROW_GROUP_ROWS { writing.write_row_group() } else { Ok(()) }
    }

    pub(super) fn finish(self) -> io::Result<Output> {
        let Some(mut writing) = self.file else {
            let reason = "no records, and no schema to derive the columns from";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        };
        writing.write_row_group()?;
        writing.file.into_inner().map_err(io_error)
    }

    fn begin_writing(&mut self, rtype: RType) -> io::Result<()> {
        let columns = columns_of(rtype).ok_or_else(|| {
            let reason = format!("records of {} cannot be written as a table", rtype.as_str());
            io::Error::new(io::ErrorKind::Unsupported, reason)
        })?;
        let Some(output) = self.pending_output.take() else { return Ok(()) };
        let pretty = self.pretty;
        let columns = columns.into_iter().map(|column| if pretty { column } else { column.into_integer() });
        let columns: Vec<Column> = columns.collect();
        let mut fields: Vec<Arc<Type>> = Vec::new();
        for column in &columns {
            fields.push(Arc::new(column.field().map_err(io_error)?));
        }
        let mut values: Vec<Values> = columns.iter().map(Values::of).collect();
        if self.map_symbols {
            fields.push(Arc::new(text_field("symbol", Repetition::OPTIONAL).map_err(io_error)?));
            values.push(Values { data: Data::Text(Vec::new()), present: Some(Vec::new()) });
        }
        let schema = Type::group_type_builder("schema").with_fields(fields).build().map_err(io_error)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(output, Arc::new(schema), Arc::new(properties)).map_err(io_error)?;
        self.file = Some(ParquetFile { file, columns, values, rows: 0 });
        Ok(())
    }
}

impl ParquetFile {
    fn push(&mut self, record: &[u8], symbol: Option<&str>) {
        for (column, values) in self.columns.iter().zip(&mut self.values) {
            values.push(column, record.get(column.offset..).unwrap_or_default());
        }
        if let Some(symbols) = self.values.get_mut(self.columns.len()) {
            symbols.push_text(symbol.map(str::as_bytes));
        }
        self.rows += 1;
    }

    fn write_row_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        self.rows = 0;
        let mut group = self.file.next_row_group().map_err(io_error)?;
        for values in &mut self.values {
            let Some(mut writer) = group.next_column().map_err(io_error)? else { break };
            let present = values.present.as_deref();
            match (writer.untyped(), &values.data) {
                (ColumnWriter::Int32ColumnWriter(column), Data::Int32(data)) => column.write_batch(data, present, None),
                (ColumnWriter::Int64ColumnWriter(column), Data::Int64(data)) => column.write_batch(data, present, None),
                (ColumnWriter::DoubleColumnWriter(column), Data::Double(data)) => {
                    column.write_batch(data, present, None)
                }
                (ColumnWriter::ByteArrayColumnWriter(column), Data::Text(data)) => {
                    column.write_batch(data, present, None)
                }
                _ => Err(ParquetError::General("a column of another type than its values".to_owned())),
            }
            .map_err(io_error)?;
            writer.close().map_err(io_error)?;
            values.clear();
        }
        group.close().map_err(io_error)?;
        Ok(())
    }
}

impl Values {
    fn of(column: &Column) -> Self {
        let data = match column.physical_type() {
            PhysicalType::INT32 => Data::Int32(Vec::new()),
            PhysicalType::DOUBLE => Data::Double(Vec::new()),
            PhysicalType::BYTE_ARRAY => Data::Text(Vec::new()),
            _ => Data::Int64(Vec::new()),
        };
        Self { data, present: column.is_nullable().then(Vec::new) }
    }

    fn push(&mut self, column: &Column, field: &[u8]) {
        if let Kind::Text(bytes_max) = column.kind {
            let bytes = field.get(..bytes_max).unwrap_or(field);
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            return self.push_text(bytes.get(..end));
        }
        let value = column.integer(field);
        let is_none = column.is_none(value);
        if let Some(present) = &mut self.present {
            present.push(i16::from(!is_none));
        }
        if is_none {
            return;
        }
        match &mut self.data {
            // Unsigned numbers keep their bits: the logical type gives their meaning.
            #[expect(clippy::cast_possible_truncation, reason = "columns of this type hold no more")]
            Data::Int32(data) => data.push(value as i32),
            #[expect(clippy::cast_possible_truncation, reason = "columns of this type hold no more")]
            Data::Int64(data) => data.push(value as i64),
            #[expect(clippy::cast_precision_loss, reason = "a double is what the data frame has")]
            Data::Double(data) => data.push(value as f64 / 1e9),
            Data::Text(_) => {}
        }
    }

    fn push_text(&mut self, text: Option<&[u8]>) {
        if let Some(present) = &mut self.present {
            present.push(i16::from(text.is_some()));
        }
        if let (Data::Text(data), Some(text)) = (&mut self.data, text) {
            data.push(ByteArray::from(text.to_vec()));
        }
    }

    fn clear(&mut self) {
        match &mut self.data {
            Data::Int32(data) => data.clear(),
            Data::Int64(data) => data.clear(),
            Data::Double(data) => data.clear(),
            Data::Text(data) => data.clear(),
        }
        if let Some(present) = &mut self.present {
            present.clear();
        }
    }
}

impl Column {
    /// Prices and times as raw integers.
    fn into_integer(self) -> Self {
        let kind = match self.kind {
            Kind::Price => Kind::I64,
            Kind::Time => Kind::U64,
            kind => kind,
        };
        Self { kind, ..self }
    }

    fn is_nullable(&self) -> bool {
        matches!(self.kind, Kind::Price | Kind::Time)
    }

    fn physical_type(&self) -> PhysicalType {
        match self.kind {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::I8 | Kind::I16 | Kind::I32 => PhysicalType::INT32,
            Kind::U64 | Kind::I64 | Kind::Time => PhysicalType::INT64,
            Kind::Price => PhysicalType::DOUBLE,
            Kind::Text(_) => PhysicalType::BYTE_ARRAY,
        }
    }

    fn field(&self) -> Result<Type, ParquetError> {
        let repetition = if self.is_nullable() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let integer = |bit_width, is_signed| Some(LogicalType::integer(bit_width, is_signed));
        let logical = match self.kind {
            Kind::U8 => integer(8, false),
            Kind::U16 => integer(16, false),
            Kind::U32 => integer(32, false),
            Kind::U64 => integer(64, false),
            Kind::I8 => integer(8, true),
            Kind::I16 => integer(16, true),
            Kind::I32 => integer(32, true),
            Kind::I64 => integer(64, true),
            Kind::Price => None,
            Kind::Time => Some(LogicalType::timestamp(true, TimeUnit::NANOS)),
            Kind::Text(_) => return text_field(&self.name, repetition),
        };
        Type::primitive_type_builder(&self.name, self.physical_type())
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
    }

    /// The field's value, whatever its width.
    fn integer(&self, field: &[u8]) -> i128 {
        macro_rules! read {
            ($number:ty) => {
                field.first_chunk().map_or(0, |bytes| i128::from(<$number>::from_le_bytes(*bytes)))
            };
        }
        match self.kind {
            Kind::U8 => read!(u8),
            Kind::U16 => read!(u16),
            Kind::U32 => read!(u32),
            Kind::U64 | Kind::Time => read!(u64),
            Kind::I8 => read!(i8),
            Kind::I16 => read!(i16),
            Kind::I32 => read!(i32),
            Kind::I64 | Kind::Price => read!(i64),
            Kind::Text(_) => 0,
        }
    }

    fn is_none(&self, value: i128) -> bool {
        match self.kind {
            Kind::Price => value == i128::from(dbn::UNDEF_PRICE),
            Kind::Time => value == i128::from(dbn::UNDEF_TIMESTAMP),
            _ => false,
        }
    }
}

fn text_field(name: &str, repetition: Repetition) -> Result<Type, ParquetError> {
    Type::primitive_type_builder(name, PhysicalType::BYTE_ARRAY)
        .with_repetition(repetition)
        .with_logical_type(Some(LogicalType::String))
        .build()
}

/// Extracts the I/O error of the file, if the error came from there.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => *cause,
            Err(cause) => io::Error::other(cause),
        },
        error => io::Error::other(error),
    }
}

/// Rows of a row group.
const ROW_GROUP_ROWS: usize = 1 << 16;
