//! [`StoredFence`]: a fence whose highest token is a row of the store.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Client, Effect, Error};
use crate::model::{Compare, IntoBytes, KeyValue, Op, Revision};

use super::fence::StaleToken;
use crate::recipes::call::Call;
use crate::recipes::lock::core::token::Token;

/// Rejects the tokens of earlier holders, like [`Fence`](crate::lock::Fence), and keeps the highest
/// token in the store. Created by [`Client::fence`]. All processes that use the same name share the
/// fence, and it survives their restarts.
///
/// Use the fence in a program that embeds a node and receives requests from holders of a lock. A
/// holder that embeds a node should write with [`Hold::txn`](crate::lock::Hold::txn) instead, which
/// needs no token.
///
/// Guarantee: once a token was admitted, every later call of [`StoredFence::admit`] for a lower
/// token fails, on every node. Limits:
///
/// - Requests of an earlier holder are admitted until the first request of a later holder.
/// - An admitted request may still be running when a later holder is admitted. If the request
///   writes with a transaction of the store, add [`StoredFence::condition`] to the transaction: the
///   store then does not apply it in this case. Otherwise pass the token on to the resource.
///
/// A fence belongs to one lock: tokens of different locks cannot be compared.
///
/// ```
/// # use bowline::{Blocking, Config, Node, Op, Token};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// let (old, new): (Token, Token) = ("17.0".parse()?, "23.0".parse()?);
/// let fence = kv.fence("fences/importer");
/// fence.admit(old).block()?; // the old holder's request arrives,
/// fence.admit(new).block()?; // is delayed, and the lock passes on meanwhile
/// let late = kv.txn().when(fence.condition(old)).then(Op::put("imported", "old"));
/// assert!(!late.commit().block()?.succeeded);
/// assert!(fence.admit(old).block().is_err());
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredFence {
    client: Client,
    key: Bytes,
}

/// Error of a [`StoredFence`]. The token was not admitted.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has already used the resource.
    #[error(transparent)]
    StaleToken(#[from] StaleToken),
    /// The key of the fence has a value that is not a token, so it belongs to something else.
    #[error("token not checked: the value of the fence is not a token: {}", .0.escape_ascii())]
    NotAFence(Bytes),
    /// Error of the store. The token may have been recorded as the highest one.
    #[error(transparent)]
    Store(#[from] Error),
}

impl FenceError {
    /// Returns whether the token was recorded as the highest one.
    pub fn effect(&self) -> Effect {
        match self {
            FenceError::StaleToken(_) | FenceError::NotAFence(_) => Effect::NotApplied,
            FenceError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. Calling twice has no
    /// additional effect.
    pub fn is_transient(&self) -> bool {
        matches!(self, FenceError::Store(error) if error.is_transient())
    }
}

impl Client {
    /// Returns the fence in the key `name`.
    pub fn fence(&self, name: impl IntoBytes) -> StoredFence {
        StoredFence { client: self.clone(), key: name.into_bytes() }
    }
}

impl StoredFence {
    /// Admits a token that is not lower than the highest token seen so far. The first call for a
    /// token costs one commit. Later calls cost a linearizable read.
    ///
    /// # Errors
    /// Returns [`FenceError::StaleToken`] for a lower token. See [`FenceError`] for other errors.
    pub fn admit(&self, token: Token) -> Call<'static, (), FenceError> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            loop {
                let row = client.get(key.clone()).deadline(until.left()).await?;
                match row.as_ref().map(token_of).transpose()? {
                    Some(highest) if token < highest => {
                        return Err(StaleToken { token, highest }.into());
                    }
                    Some(highest) if token == highest => return Ok(()),
                    _ => {}
                }
                let seen = row.map_or(Revision(0), |row| row.mod_revision);
                let is_unchanged = Compare::mod_revision(key.clone()).eq(seen);
                let raise = Op::put(key.clone(), token.to_string());
                let txn = client.txn().when(is_unchanged).then(raise).deadline(until.left());
                if txn.commit().await?.succeeded {
                    return Ok(());
                }
                // Another call has raised the highest token: compare with the new one.
            }
        })
    }

    /// Returns the condition that `token` is the highest token seen, for a transaction of an
    /// admitted request. Its key is complete: pass it to
    /// [`TxnCall::when_complete`](crate::TxnCall::when_complete) if the client of the transaction has
    /// a [prefix](Client::with_prefix).
    pub fn condition(&self, token: Token) -> Compare {
        Compare::value(self.client.scope.key(self.key.clone())).eq(token.to_string())
    }

    /// Returns the highest token seen, with a linearizable read.
    ///
    /// # Errors
    /// See [`FenceError`].
    pub fn highest(&self) -> Call<'static, Option<Token>, FenceError> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            let row = client.get(key).deadline(until.left()).await?;
            row.as_ref().map(token_of).transpose()
        })
    }
}

fn token_of(row: &KeyValue) -> Result<Token, FenceError> {
    let token = std::str::from_utf8(&row.value).ok().and_then(|text| text.parse().ok());
    token.ok_or_else(|| FenceError::NotAFence(row.value.clone()))
}
