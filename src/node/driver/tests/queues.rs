//! Tests of the limits of the queues in front of the driver.

use std::sync::Mutex;

use super::*;
use crate::model::SessionInfo;
use crate::node::ReplyTo;
use crate::node::StopReason;

#[test]
fn writes_beyond_the_admission_limits_are_busy() {
    let mut three = Three::led_by(0, |_, settings| {
        settings.open_writes_max = 10;
        settings.open_bytes_max = 1 << 20;
    });
    let few: Vec<Call> = (0..10).map(|_| three.call(0, put("k", 10), 5_000)).collect();
    assert_eq!(three.write(0, put("more", 10)), Err(CallError::Busy), "the eleventh");
    few.into_iter().for_each(|call| drop(three.finish(call).unwrap()));
    let large: Vec<Call> = (0..2).map(|_| three.call(0, put("k", 500_000), 5_000)).collect();
    assert_eq!(three.write(0, put("more", 100_000)), Err(CallError::Busy), "too many bytes");
    large.into_iter().for_each(|call| drop(three.finish(call).unwrap()));
    three.put(0, "more", 10).unwrap();
    assert_eq!(three.shared(0).admission.open_bytes(), 0, "everything is given back");
}

/// A session that is being opened, and the result of the first poll.
type Opening = Pin<Box<dyn Future<Output = CallResult<()>>>>;

fn open_session(three: &Three) -> (Opening, Poll<CallResult<()>>) {
    let shared = Arc::clone(three.shared(0));
    let deadline = shared.now() + Duration::from_secs(5);
    let info = SessionInfo { label: "s".to_owned(), own: false };
    let ttl = Duration::from_secs(5);
    let mut opening: Opening =
        Box::pin(async move { shared.open_session(ttl, ttl, info, deadline).await.map(drop) });
    let first = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    (opening, first)
}

#[test]
fn sessions_that_are_being_opened_count_as_writes() {
    let mut three = Three::led_by(0, |_, settings| settings.open_writes_max = 3);
    let opening: Vec<_> = (0..3).map(|_| open_session(&three)).collect();
    assert!(opening.iter().all(|(_, first)| first.is_pending()));
    assert_eq!(open_session(&three).1, Poll::Ready(Err(CallError::Busy)));
    three.pass(100);
    for (mut opening, _) in opening {
        let polled = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(Ok(())));
    }
    assert!(open_session(&three).1.is_pending(), "there is room again");
    three.pass(100);
    assert_eq!(three.shared(0).admission.open_bytes(), 0);
}

#[test]
fn stopped_node_reports_stopped_before_other_errors() {
    let mut three = Three::led_by(0, |_, settings| settings.open_writes_max = 1);
    three.disk(0, Space::Low);
    three.step();
    assert_eq!(open_session(&three).1, Poll::Ready(Err(CallError::NoSpace)));
    three.push(0, Input::Abort);
    three.step();
    let stopped = CallError::Stopped { reason: StopReason::Killed, maybe_applied: false };
    assert_eq!(open_session(&three).1, Poll::Ready(Err(stopped.clone())));

    // Rejected calls do not count towards the limit.
    let mut three = Three::led_by(0, |_, settings| settings.open_writes_max = 1);
    three.push(0, Input::Abort);
    three.step();
    for _ in 0..3 {
        assert_eq!(open_session(&three).1, Poll::Ready(Err(stopped.clone())));
        assert_eq!(three.shared(0).admission.open_bytes(), 0, "everything is given back");
    }
}

#[test]
fn callers_awaiting_a_transfer_are_bounded() {
    let mut three = Three::led_by(0, |_, _| {});
    for peer in [1, 2] {
        three.hub.cut(id(0), id(peer));
    }
    let results: Arc<Mutex<Vec<CallResult<()>>>> = Arc::default();
    let deadline = three.clock.now() + Duration::from_secs(1);
    for _ in 0..400 {
        let results = Arc::clone(&results);
        let reply = ReplyTo::Call(Box::new(move |result| results.lock().unwrap().push(result)));
        three.push(0, Input::Transfer { to: Some(id(1)), deadline, reply });
    }
    three.step();
    let is_busy = |result: &&CallResult<()>| **result == Err(CallError::Busy);
    assert_eq!(results.lock().unwrap().iter().filter(is_busy).count(), 400 - 256);
    three.pass(3_000);
    assert_eq!(results.lock().unwrap().len(), 400, "every caller is answered in the end");
}
