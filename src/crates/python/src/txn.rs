//! Conditions and operations of transactions. `bowline/_txn.py` describes both as tuples.

use bowline::kv::{Delete, PutLease, Range, Txn};
use bowline::{Compare, Op, Put, Revision};
use pyo3::exceptions::PyValueError;
use pyo3::types::{PyAnyMethods, PyTuple};
use pyo3::{Borrowed, Bound, FromPyObject, PyAny, PyErr, PyResult, intern};

use crate::args::{Data, Keys, LeaseNumber};

/// Returns the tuple that a Python object represents.
fn parts<'py>(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    Ok(object.getattr(intern!(object.py(), "_parts"))?.cast_into::<PyTuple>()?)
}

fn unknown(what: &str, word: &str) -> PyErr {
    PyValueError::new_err(format!("invalid {what}: {word}"))
}

/// A condition: `(target, operator, keys, operand)`.
pub(crate) struct Condition(Compare);

impl FromPyObject<'_, '_> for Condition {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        let (target, operator, Keys(keys), operand): (String, String, Keys, Bound<'_, PyAny>) =
            parts(object)?.extract()?;
        macro_rules! compare {
            ($builder:expr, $operand:expr) => {{
                let (builder, operand) = ($builder, $operand);
                match operator.as_str() {
                    "eq" => builder.eq(operand),
                    "ne" => builder.ne(operand),
                    "gt" => builder.gt(operand),
                    "lt" => builder.lt(operand),
                    other => return Err(unknown("operator", other)),
                }
            }};
        }
        let number = || operand.extract::<u64>();
        Ok(Condition(match target.as_str() {
            "value" => compare!(Compare::value(keys), operand.extract::<Data>()?.0),
            "version" => compare!(Compare::version(keys), number()?),
            "create_revision" => compare!(Compare::create_revision(keys), Revision(number()?)),
            "mod_revision" => compare!(Compare::mod_revision(keys), Revision(number()?)),
            "lease" => compare!(Compare::lease(keys), number()?),
            other => return Err(unknown("target", other)),
        }))
    }
}

/// An operation: `("put", key, value, lease, prev_kv)`, `("delete", keys, prev_kv)`,
/// `("range", keys, limit)` or `("txn", when, then, or_else)`.
pub(crate) struct Step(Op);

impl FromPyObject<'_, '_> for Step {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> Result<Self, PyErr> {
        let parts = parts(object)?;
        let kind: String = parts.get_item(0)?.extract()?;
        Ok(Step(match kind.as_str() {
            "put" => {
                let (_, key, value, lease, prev_kv): (
                    String,
                    Data,
                    Data,
                    Option<LeaseNumber>,
                    bool,
                ) = parts.extract()?;
                let mut put = Put::new(key.0, value.0);
                put.lease = lease.map_or(PutLease::None, |lease| PutLease::Attach(lease.0));
                put.prev_kv = prev_kv;
                put.into()
            }
            "delete" => {
                let (_, keys, prev_kv): (String, Keys, bool) = parts.extract()?;
                let mut delete = Delete::new(keys.0);
                delete.prev_kv = prev_kv;
                delete.into()
            }
            "range" => {
                let (_, keys, limit): (String, Keys, Option<u64>) = parts.extract()?;
                let mut range = Range::new(keys.0);
                range.limit = limit;
                range.into()
            }
            "txn" => {
                let (_, when, then, or_else): (String, Vec<Condition>, Vec<Step>, Vec<Step>) =
                    parts.extract()?;
                transaction(when, then, or_else).into()
            }
            other => return Err(unknown("operation", other)),
        }))
    }
}

/// Returns the conditions in Bowline's own form.
pub(crate) fn compares(conditions: Vec<Condition>) -> Vec<Compare> {
    conditions.into_iter().map(|Condition(compare)| compare).collect()
}

/// Returns the operations in Bowline's own form.
pub(crate) fn ops(steps: Vec<Step>) -> Vec<Op> {
    steps.into_iter().map(|Step(op)| op).collect()
}

pub(crate) fn transaction(when: Vec<Condition>, then: Vec<Step>, or_else: Vec<Step>) -> Txn {
    Txn { compares: compares(when), success: ops(then), failure: ops(or_else) }
}
