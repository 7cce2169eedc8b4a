//! The routes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use axum::{Extension, Json, Router};
use bowline::coordination::Expected;
use bowline::kv::DecodeError;
use bowline::tower::{FenceLayer, FenceRejection, LeaderLayer, NotLeader};
use bowline::typed::{TypedBatch, TypedEvent};
use bowline::{Node, Revision, Token, WatchError};
use futures_util::{Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::flags::{Flag, Flags, name_of};
use crate::service::until_set;
use crate::sweeper::{ELECTION, SharedReport};

/// How long `/readyz` waits for the cluster.
const READY_WITHIN: Duration = Duration::from_secs(1);

/// The state that the handlers share.
#[derive(Clone)]
pub struct App {
    /// The node of this process.
    pub node: Arc<Node>,
    /// The flags.
    pub flags: Flags,
    /// The report of the sweeper.
    pub report: SharedReport,
    /// Set when the service stops, so that streams end.
    pub stop: watch::Receiver<bool>,
}

/// Returns the routes.
pub fn router(app: App) -> Router {
    // The report is in the memory of the leader.
    let for_leader = Router::new()
        .route("/sweeper", get(sweeper))
        .route_layer(LeaderLayer::new(&app.node, ELECTION, not_leader));
    // An importer holds a lock and sends its token, so that two importers do not mix their flags.
    let fenced = Router::new().route("/flags", patch(import)).route_layer(FenceLayer::new(
        app.flags.import_fence(),
        fencing_token,
        not_admitted,
    ));
    Router::new()
        .route("/flags", get(list))
        .route("/flags/{name}", get(get_flag).put(put_flag))
        .route("/events", get(events))
        .merge(for_leader)
        .merge(fenced)
        .route("/leader", get(leader))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(app)
}

async fn list(State(app): State<App>) -> Result<Json<BTreeMap<String, Flag>>, ApiError> {
    Ok(Json(app.flags.list().await?))
}

async fn get_flag(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let row = app.flags.get(&name).await?.ok_or(ApiError::NotFound(name))?;
    Ok(([(header::ETAG, etag(row.mod_revision))], Json(row.value)))
}

/// Writes a flag. With `if-match` or `if-none-match: *` only if it has this version, or is new.
async fn put_flag(
    State(app): State<App>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(flag): Json<Flag>,
) -> Result<impl IntoResponse, ApiError> {
    let revision = app.flags.set(&name, &flag, expected(&headers)?).await?;
    Ok(([(header::ETAG, etag(revision))], Json(flag)))
}

async fn import(
    State(app): State<App>,
    Extension(token): Extension<Token>,
    Json(flags): Json<BTreeMap<String, Flag>>,
) -> Result<Json<Value>, ApiError> {
    let revision = app.flags.import(&flags, token).await?;
    Ok(Json(json!({ "imported": flags.len(), "revision": revision.get() })))
}

/// Streams all changes. A browser that connects again sends the id of the last event that it has
/// seen, and continues there: no change is lost.
async fn events(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let mut watch = app.flags.watch();
    if let Some(id) = headers.get("last-event-id") {
        watch = watch.after(revision(id.to_str().unwrap_or_default())?);
    }
    let (watch, flags) = (watch.await?, app.flags);
    let changes = watch.map(move |batch| Ok(to_event(batch, &flags)));
    // An open stream would keep the service from stopping.
    let until_stop = changes.take_until(until_set(app.stop));
    Ok(Sse::new(until_stop).keep_alive(KeepAlive::default()))
}

/// Returns one event for a batch of changes. Its id is the last revision of the batch, from which a
/// client continues after a broken connection.
fn to_event(batch: Result<TypedBatch<Flag>, WatchError>, flags: &Flags) -> Event {
    match batch {
        Ok(batch) => {
            let changes: Vec<Value> = batch.events.into_iter().map(to_json).collect();
            Event::default().id(batch.revision.to_string()).data(Value::from(changes).to_string())
        }
        // The history was compacted. The client reads `/flags` again, and continues at this id.
        Err(why) => {
            Event::default().event("reset").id(flags.revision().to_string()).data(why.to_string())
        }
    }
}

fn to_json(change: Result<TypedEvent<Flag>, DecodeError>) -> Value {
    match change {
        Ok(TypedEvent::Put(row)) => json!({ "name": name_of(&row.key), "flag": row.value }),
        Ok(TypedEvent::Delete { key, .. }) => json!({ "name": name_of(&key), "flag": null }),
        Err(why) => json!({ "name": name_of(&why.key), "error": why.to_string() }),
    }
}

async fn sweeper(State(app): State<App>) -> impl IntoResponse {
    Json(app.report.get())
}

/// Shows both leaders: the one that runs the job, and the one of the consensus.
async fn leader(State(app): State<App>) -> Json<Value> {
    let (elected, status) = (app.node.election_view(ELECTION), app.node.status());
    let member = status.members.iter().find(|member| Some(member.id) == status.leader);
    Json(json!({
        "elected": elected.leader().map(|leader| text(&leader.value)),
        "elected_here": elected.is_leader(),
        "consensus": member.map(|member| &member.name),
    }))
}

/// The process is alive. If not, restart it.
async fn healthz(State(app): State<App>) -> impl IntoResponse {
    let health = app.node.health();
    (status(health.is_alive()), health.to_string())
}

/// The process serves linearizable calls. If not, send requests to another one.
async fn readyz(State(app): State<App>) -> impl IntoResponse {
    let ready = app.node.ready().deadline(READY_WITHIN).await;
    (status(ready.is_ok()), app.node.health().to_string())
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.node.metrics().to_prometheus())
}

fn status(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn not_leader(_: &Request, why: NotLeader) -> Response {
    ApiError::NotLeader(why).into_response()
}

/// Finds the fencing token of a request, and keeps it for the handler.
fn fencing_token(request: &mut Request) -> Option<Token> {
    let token: Token = request.headers().get("fencing-token")?.to_str().ok()?.parse().ok()?;
    request.extensions_mut().insert(token);
    Some(token)
}

fn not_admitted(_: &Request, why: FenceRejection) -> Response {
    ApiError::Fence(why).into_response()
}

/// Returns the state that the headers require.
fn expected(headers: &HeaderMap) -> Result<Option<Expected>, ApiError> {
    if let Some(version) = headers.get(header::IF_MATCH) {
        let version = version.to_str().unwrap_or_default().trim_matches('"');
        return Ok(Some(revision(version)?.into()));
    }
    Ok(headers.get(header::IF_NONE_MATCH).map(|_| Expected::Missing))
}

fn etag(revision: Revision) -> String {
    format!("\"{revision}\"")
}

fn revision(text: &str) -> Result<Revision, ApiError> {
    let number = text.parse().map_err(|_| ApiError::BadRequest(format!("no version: {text:?}")))?;
    Ok(Revision(number))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
