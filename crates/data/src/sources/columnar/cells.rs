//! The values of a column of a record batch, as numbers, texts and lists.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

/// Returns a number for each row, and `None` where it is null or NaN.
///
/// # Errors
/// The column is not of numbers; the error is the message.
pub(super) fn numbers(column: &dyn Array) -> Result<Vec<Option<f64>>, String> {
    macro_rules! of {
        ($type:ty, $to:expr) => {
            column.as_primitive::<$type>().iter().map(|x| x.map($to)).collect::<Vec<Option<f64>>>()
        };
    }
    let all = match column.data_type() {
        DataType::Boolean => column.as_boolean().iter().map(|x| x.map(|x| f64::from(u8::from(x)))).collect(),
        DataType::Int8 => of!(Int8Type, f64::from),
        DataType::Int16 => of!(Int16Type, f64::from),
        DataType::Int32 => of!(Int32Type, f64::from),
        DataType::Int64 => of!(Int64Type, |x| x as f64),
        DataType::UInt8 => of!(UInt8Type, f64::from),
        DataType::UInt16 => of!(UInt16Type, f64::from),
        DataType::UInt32 => of!(UInt32Type, f64::from),
        DataType::UInt64 => of!(UInt64Type, |x| x as f64),
        DataType::Float16 => of!(Float16Type, f64::from),
        DataType::Float32 => of!(Float32Type, f64::from),
        DataType::Float64 => of!(Float64Type, |x| x),
        text if is_text(text) => {
            return Err("texts are not numbers: `Columnar::category` or `Columnar::text` reads them".into());
        }
        other => return Err(format!("{other} are no numbers")),
    };
    Ok(all.into_iter().map(|x| x.filter(|x| !x.is_nan())).collect())
}

/// Returns the numbers of a column of whole numbers of 64 bits, with their rows. Of others there are none.
pub(super) fn wide(column: &dyn Array) -> Vec<(usize, i128)> {
    fn all<T: Into<i128>>(numbers: impl Iterator<Item = Option<T>>) -> Vec<(usize, i128)> {
        numbers.enumerate().filter_map(|(row, number)| Some((row, number?.into()))).collect()
    }
    match column.data_type() {
        DataType::Int64 => all(column.as_primitive::<Int64Type>().iter()),
        DataType::UInt64 => all(column.as_primitive::<UInt64Type>().iter()),
        _ => Vec::new(),
    }
}

/// Whether a column's numbers are whole, by its type.
pub(super) fn is_whole(of: &DataType) -> bool {
    of.is_integer() || *of == DataType::Boolean
}

/// Whether a column is of texts, by its type.
pub(super) fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Returns a text for each row, and `None` where it is null. Whole numbers are texts of their digits.
///
/// # Errors
/// The column is of something else; the error is the message.
pub(super) fn texts(column: &dyn Array) -> Result<Vec<Option<String>>, String> {
    let owned = |x: Option<&str>| x.map(str::to_owned);
    Ok(match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().map(owned).collect(),
        DataType::LargeUtf8 => column.as_string::<i64>().iter().map(owned).collect(),
        DataType::Utf8View => column.as_string_view().iter().map(owned).collect(),
        DataType::Dictionary(_, values) if is_text(values) => {
            let dictionary = column.as_any_dictionary();
            let values = texts(dictionary.values().as_ref())?;
            let keys = dictionary.normalized_keys();
            let text = |(row, key): (usize, usize)| {
                if column.is_null(row) { None } else { values.get(key)?.clone() }
            };
            keys.into_iter().enumerate().map(text).collect()
        }
        DataType::Int64 => {
            column.as_primitive::<Int64Type>().iter().map(|x| x.map(|x| x.to_string())).collect()
        }
        DataType::UInt64 => {
            column.as_primitive::<UInt64Type>().iter().map(|x| x.map(|x| x.to_string())).collect()
        }
        whole if is_whole(whole) => {
            numbers(column)?.into_iter().map(|x| x.map(|x| format!("{x:.0}"))).collect()
        }
        other => return Err(format!("{other} are neither texts nor whole numbers")),
    })
}

/// Returns the list of each row, and `None` where it is null.
///
/// # Errors
/// The column is not of lists; the error is the message.
pub(super) fn lists(column: &dyn Array) -> Result<Vec<Option<ArrayRef>>, String> {
    Ok(match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().iter().collect(),
        DataType::LargeList(_) => column.as_list::<i64>().iter().collect(),
        DataType::FixedSizeList(_, _) => column.as_fixed_size_list().iter().collect(),
        other => return Err(format!("{other} are no lists")),
    })
}

/// Returns the type of the elements of lists.
pub(super) fn element(of: &DataType) -> Option<&DataType> {
    match of {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            Some(field.data_type())
        }
        _ => None,
    }
}
