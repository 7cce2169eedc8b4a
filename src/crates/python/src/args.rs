//! Arguments of calls: keys and values as `str` or `bytes`, durations as seconds.

use std::time::Duration;

use bowline::{Bytes, KeyRange, LeaseId, Revision};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::types::{PyAnyMethods, PyBytes, PyBytesMethods, PyString, PyStringMethods};
use pyo3::{Borrowed, FromPyObject, PyAny, PyErr};

/// A key or a value: `bytes`, or `str`, which is encoded as UTF-8.
#[derive(Clone)]
pub(crate) struct Data(pub(crate) Bytes);

impl FromPyObject<'_, '_> for Data {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data(Bytes::copy_from_slice(bytes.as_bytes())));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Data(Bytes::copy_from_slice(text.to_cow()?.as_bytes())));
        }
        let kind = object.get_type();
        Err(PyTypeError::new_err(format!("expected bytes or str, not {kind}")))
    }
}

/// A duration in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromPyObject<'_, '_> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        let seconds: f64 = object.extract()?;
        let duration = match seconds == f64::INFINITY {
            true => Ok(Duration::MAX),
            false => Duration::try_from_secs_f64(seconds),
        };
        let invalid = |_| PyValueError::new_err(format!("invalid duration in seconds: {seconds}"));
        duration.map(Seconds).map_err(invalid)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct LeaseNumber(pub(crate) LeaseId);

impl FromPyObject<'_, '_> for LeaseNumber {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        let id: u64 = object.extract()?;
        let invalid = || PyValueError::new_err("a lease id is at least 1");
        LeaseId::new(id).map(LeaseNumber).ok_or_else(invalid)
    }
}

/// The keys of a call, as a tuple of a kind, a start and an end: `("key", key, None)`,
/// `("prefix", prefix, None)` or `("range", start, end)`. A range without an end has all keys from
/// `start` on.
pub(crate) struct Keys(pub(crate) KeyRange);

impl FromPyObject<'_, '_> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        let (kind, start, end): (String, Data, Option<Data>) = object.extract()?;
        let start = start.0;
        Ok(Keys(match (kind.as_str(), end) {
            ("key", None) => KeyRange::key(start),
            ("prefix", None) => KeyRange::prefix(start),
            ("range", None) => KeyRange::starting_at(start),
            ("range", Some(end)) => KeyRange::between(start, end.0),
            _ => return Err(PyValueError::new_err(format!("invalid kind of keys: {kind}"))),
        }))
    }
}

/// Returns the revision of an optional argument.
pub(crate) fn revision(number: Option<u64>) -> Option<Revision> {
    number.map(Revision)
}
