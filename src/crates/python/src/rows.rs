//! Rows, events and replies as Python objects.

use bowline::kv::{DeleteReply, RevokeReply};
use bowline::lease::Lease;
use bowline::{Bytes, EventKind, PutReply, RangeReply, TxnReply, TxnResult};
use pyo3::types::{PyAnyMethods, PyBytes, PyBytesMethods, PyList, PyTuple};
use pyo3::{
    Bound, IntoPyObject, IntoPyObjectExt, Py, PyAny, PyErr, PyResult, Python, pyclass, pymethods,
};

use crate::args::Data;

/// Converts bytes to a Python object.
pub(crate) fn bytes(py: Python<'_>, bytes: &Bytes) -> Py<PyBytes> {
    PyBytes::new(py, bytes).unbind()
}

/// Decodes UTF-8, or raises `UnicodeDecodeError`.
pub(crate) fn text(py: Python<'_>, bytes: &Py<PyBytes>) -> PyResult<String> {
    bytes.bind(py).as_any().call_method1("decode", ("utf-8",))?.extract()
}

/// A key with its value at one revision.
#[pyclass(frozen, get_all, module = "bowline")]
pub(crate) struct KeyValue {
    key: Py<PyBytes>,
    value: Py<PyBytes>,
    create_revision: u64,
    mod_revision: u64,
    version: u64,
    lease: Option<u64>,
}

impl KeyValue {
    fn new(py: Python<'_>, row: &bowline::KeyValue) -> Self {
        Self {
            key: bytes(py, &row.key),
            value: bytes(py, &row.value),
            create_revision: row.create_revision.get(),
            mod_revision: row.mod_revision.get(),
            version: row.version,
            lease: row.lease.map(|lease| lease.get()),
        }
    }
}

#[pymethods]
impl KeyValue {
    /// The value as text.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        text(py, &self.value)
    }

    /// The key as text.
    #[getter]
    fn key_text(&self, py: Python<'_>) -> PyResult<String> {
        text(py, &self.key)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (key, value) = (self.key.bind(py), self.value.bind(py));
        let (key, value) = (key.as_bytes().escape_ascii(), value.as_bytes().escape_ascii());
        format!("KeyValue(key=b'{key}', value=b'{value}', mod_revision={})", self.mod_revision)
    }
}

/// A row on its way to Python.
pub(crate) struct Row(pub(crate) bowline::KeyValue);

impl<'py> IntoPyObject<'py> for Row {
    type Target = KeyValue;
    type Output = Bound<'py, KeyValue>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, KeyValue>> {
        Bound::new(py, KeyValue::new(py, &self.0))
    }
}

/// One change of one key.
#[pyclass(frozen, get_all, module = "bowline")]
pub(crate) struct Event {
    kind: &'static str,
    key: Py<PyBytes>,
    value: Py<PyBytes>,
    revision: u64,
    kv: Py<KeyValue>,
    prev: Option<Py<KeyValue>>,
}

impl Event {
    pub(crate) fn new(py: Python<'_>, event: bowline::Event) -> PyResult<Self> {
        let prev = event.prev.map(|row| Row(row).into_pyobject(py)).transpose()?;
        Ok(Self {
            kind: match event.kind {
                EventKind::Put => "put",
                EventKind::Delete => "delete",
            },
            key: bytes(py, &event.kv.key),
            value: bytes(py, &event.kv.value),
            revision: event.kv.mod_revision.get(),
            kv: Row(event.kv).into_pyobject(py)?.unbind(),
            prev: prev.map(Bound::unbind),
        })
    }
}

#[pymethods]
impl Event {
    /// The value as text.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        text(py, &self.value)
    }

    /// The key as text.
    #[getter]
    fn key_text(&self, py: Python<'_>) -> PyResult<String> {
        text(py, &self.key)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let key = self.key.bind(py).as_bytes().escape_ascii();
        format!("Event(kind='{}', key=b'{key}', revision={})", self.kind, self.revision)
    }
}

/// A reply that becomes a tuple. The Python classes of replies are named tuples with these fields.
pub(crate) enum Answer {
    Put(PutReply),
    Delete(DeleteReply),
    Range(RangeReply),
    Txn(TxnReply),
    Lease(Lease),
    Revoked(RevokeReply),
}

fn rows(rows: Vec<bowline::KeyValue>) -> Vec<Row> {
    rows.into_iter().map(Row).collect()
}

impl<'py> IntoPyObject<'py> for Answer {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Answer::Put(PutReply { revision, prev, .. }) => {
                ("put", revision.get(), prev.map(Row)).into_bound_py_any(py)
            }
            Answer::Delete(DeleteReply { revision, deleted, prev_kvs, .. }) => {
                ("delete", revision.get(), deleted, rows(prev_kvs)).into_bound_py_any(py)
            }
            Answer::Range(RangeReply { revision, kvs, more, count, .. }) => {
                ("range", rows(kvs), count, more, revision.get()).into_bound_py_any(py)
            }
            Answer::Txn(TxnReply { revision, succeeded, results, .. }) => {
                let results = results.into_iter().map(|result| match result {
                    TxnResult::Put(reply) => Answer::Put(reply).into_pyobject(py),
                    TxnResult::Delete(reply) => Answer::Delete(reply).into_pyobject(py),
                    TxnResult::Range(reply) => Answer::Range(reply).into_pyobject(py),
                    TxnResult::Txn(reply) => Answer::Txn(reply).into_pyobject(py),
                });
                let results = PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)?;
                ("txn", succeeded, revision.get(), results).into_bound_py_any(py)
            }
            Answer::Lease(lease) => (lease.id.get(), lease.ttl.as_secs_f64()).into_bound_py_any(py),
            Answer::Revoked(reply) => {
                PyTuple::new(py, [reply.revision.get(), reply.deleted])?.into_bound_py_any(py)
            }
        }
    }
}

/// A value that a call returns as `bytes`.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Bytes);

impl<'py> IntoPyObject<'py> for Raw {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0))
    }
}

impl From<Data> for Bytes {
    fn from(data: Data) -> Bytes {
        data.0
    }
}
