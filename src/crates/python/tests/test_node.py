"""The blocking API on one node."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import warnings

from support import NodeCase, TempDirCase, free_ports

import bowline
from bowline import Compare, Node, Op, Token


class Start(TempDirCase):
    def test_node_outside_its_block_is_not_running(self) -> None:
        node = Node(self.place / "data", "solo")
        with self.assertRaises(bowline.NotStartedError):
            node.kv
        with node:
            node.ready(timeout=30)
            self.assertTrue(node.is_leader)
            self.assertEqual(str(node.health()), node.health().text)
            self.assertEqual(node.health().status, "healthy")
            self.assertEqual([member.name for member in node.status().members], ["solo"])
            self.assertIn("bowline_", node.metrics())
        with self.assertRaises(bowline.NotStartedError):
            node.metrics()
        # The same directory again.
        with node:
            self.assertEqual(node.name, "solo")

    def test_start_errors_name_their_kind(self) -> None:
        with self.assertRaises(bowline.ConfigError) as config:
            Node(self.place / "data", "n4", members="n1=127.0.0.1:1,n2=127.0.0.1:2,n3=127.0.0.1:3").start()
        self.assertIsInstance(config.exception, ValueError)
        self.assertIn("n4", str(config.exception))
        with Node(self.place / "data", "solo"), self.assertRaises(bowline.DataError) as data:
            Node(self.place / "data", "solo").start()
        self.assertEqual(data.exception.kind, "in_use")
        with self.assertRaises(TypeError):
            Node(self.place / "data", "solo", session_ttl="long").start()  # type: ignore[arg-type]
        with self.assertRaises(ValueError):
            Node(self.place / "data", "solo", members="n1").start()

    def test_unfounded_cluster_names_the_missing_members(self) -> None:
        members = {f"n{at}": f"127.0.0.1:{port}" for at, port in enumerate(free_ports(3), 1)}
        with Node(self.place / "data", "n1", members=members) as node:
            with self.assertRaises(bowline.NotFoundedError) as missing:
                node.ready(timeout=0.5)
            self.assertEqual(len(missing.exception.waiting_for), 2)
            self.assertIsInstance(missing.exception, TimeoutError)
            self.assertTrue(missing.exception.is_transient)
            self.assertEqual(missing.exception.effect, "not_applied")

    def test_forgotten_node_is_reported_and_stops(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            node = Node(self.place / "data", "solo").start()
            del node
            gc.collect()
        self.assertIn("was not shut down", str(caught[0].message))

    def test_program_that_ends_without_shutdown_frees_its_locks(self) -> None:
        program = """
            import sys, bowline
            node = bowline.Node(sys.argv[1], "solo", session_ttl=3600).start()
            lease = node.session(ttl=3600).lock("lock").acquire()
            if len(sys.argv) > 2:
                import os
                os._exit(0)
        """
        for crash in ([], ["crash"]):
            command = [sys.executable, "-c", textwrap.dedent(program), str(self.place / "data"), *crash]
            subprocess.run(command, check=True, timeout=60)
            with Node(self.place / "data", "solo") as node:
                free = node.lock("lock").try_acquire()
                self.assertEqual(free is None, bool(crash))


class Keys(NodeCase):
    def test_rows_have_bytes_and_text(self) -> None:
        kv = self.node.kv
        put = kv.put("greeting", b"hello")
        row = kv.get(b"greeting")
        assert row is not None
        self.assertEqual((row.key, row.value, row.text, row.key_text), (b"greeting", b"hello", "hello", "greeting"))
        self.assertEqual((row.mod_revision, row.version, row.lease), (put.revision, 1, None))
        self.assertIn("greeting", repr(row))
        kv.put("binary", b"\xff\x00")
        binary = kv.get("binary")
        assert binary is not None
        self.assertEqual(binary.value, b"\xff\x00")
        with self.assertRaises(UnicodeDecodeError):
            binary.text
        self.assertIsNone(kv.get("missing"))
        with self.assertRaises(TypeError):
            kv.put("number", 1)  # type: ignore[arg-type]
        with self.assertRaises(bowline.RejectedError) as rejected:
            kv.put("", "empty")
        self.assertEqual(rejected.exception.effect, "not_applied")
        self.assertFalse(rejected.exception.is_transient)

    def test_ranges_and_prefixes(self) -> None:
        kv = self.node.kv
        for name in ("a", "b/1", "b/2", "c"):
            kv.put(name, name.upper())
        self.assertEqual([row.key_text for row in kv.get_prefix("b/")], ["b/1", "b/2"])
        self.assertEqual([row.key_text for row in kv.range("a", "c")], ["a", "b/1", "b/2"])
        self.assertEqual([row.key_text for row in kv.range("b/2")], ["b/2", "c"])
        self.assertEqual(len(kv.range("")), 4)
        page = kv.range("", "c", limit=2, descending=True)
        self.assertEqual(([row.key_text for row in page], page.more, page.count), (["b/2", "b/1"], True, 3))
        self.assertEqual(kv.get_prefix("b/", count_only=True).count, 2)
        self.assertEqual(kv.get_prefix("b/", keys_only=True)[0].value, b"")
        self.assertEqual(kv.get_prefix("", sort_by="mod_revision")[0].key_text, "a")
        with self.assertRaises(ValueError):
            kv.get_prefix("", sort_by="color")
        inner = kv.with_prefix("b/")
        self.assertEqual([row.key_text for row in inner.range("")], ["1", "2"])
        old = kv.delete("a", prev_kv=True)
        self.assertEqual((old.deleted, old.prev[0].text), (1, "A"))
        self.assertEqual(kv.delete_prefix("b/").deleted, 2)
        earlier = kv.get("a", revision=old.revision - 1)
        assert earlier is not None
        self.assertEqual(earlier.text, "A")

    def test_transactions(self) -> None:
        kv = self.node.kv
        when = [Compare.missing("a"), Compare.version("a").eq(0)]
        reply = kv.txn(when, then=[Op.put("a", "1", prev_kv=True), Op.get("a")], or_else=[Op.get("a")])
        self.assertTrue(reply)
        put, read = reply.results
        assert isinstance(put, bowline.PutReply) and isinstance(read, bowline.RangeReply)
        self.assertEqual((put.revision, read[0].text), (reply.revision, "1"))
        self.assertFalse(kv.txn(when, then=[Op.put("a", "2")]))
        for condition in (
            Compare.value("a").eq("1"),
            Compare.value("a").gt(b"0"),
            Compare.value("a").ne("2"),
            Compare.exists("a"),
            Compare.create_revision("a").eq(reply.revision),
            Compare.mod_revision("a").lt(reply.revision + 1),
            Compare.lease("a").eq(0),
        ):
            self.assertTrue(kv.txn([condition]), condition)
        nested = kv.txn(then=[Op.txn([Compare.exists("b")], or_else=[Op.delete("a"), Op.get_prefix("")])])
        inner = nested.results[0]
        assert isinstance(inner, bowline.TxnReply)
        self.assertFalse(inner.succeeded)
        deleted, left = inner.results
        assert isinstance(deleted, bowline.DeleteReply) and isinstance(left, bowline.RangeReply)
        self.assertEqual((deleted.deleted, left.rows), (1, []))

    def test_leases_delete_their_keys(self) -> None:
        kv = self.node.kv
        kv.put("short", "1", ttl=0.5)
        with kv.watch("short", kind="delete") as watch:
            event = watch.next(timeout=30)
            self.assertEqual(event and event.kind, "delete")
        lease = kv.grant(60)
        kv.put("leased", "1", lease=lease.id)
        row = kv.get("leased")
        assert row is not None
        self.assertEqual(row.lease, lease.id)
        self.assertEqual(kv.renew(lease.id), 60)
        left = kv.time_to_live(lease.id)
        assert left is not None
        self.assertGreater(left, 50)
        self.assertEqual(kv.revoke(lease.id).deleted, 1)
        self.assertIsNone(kv.get("leased"))
        self.assertIsNone(kv.time_to_live(lease.id))
        with self.assertRaises(bowline.RejectedError):
            kv.put("leased", "2", lease=lease.id)
        with self.assertRaises(ValueError):
            kv.revoke(0)

    def test_watch_delivers_changes_in_order(self) -> None:
        kv = self.node.kv
        first = kv.put("w/1", "a")
        with kv.watch_prefix("w/", start_revision=first.revision, prev_kv=True) as watch:
            kv.put("w/1", "b")
            kv.delete("w/1")
            kv.txn(then=[Op.put("w/2", "c"), Op.put("w/3", "d")])
            events = [next(watch) for _ in range(5)]
            self.assertIsNone(watch.next(timeout=0.05))
        shown = [(event.kind, event.key_text, event.text) for event in events]
        self.assertEqual(
            shown,
            [("put", "w/1", "a"), ("put", "w/1", "b"), ("delete", "w/1", ""), ("put", "w/2", "c"), ("put", "w/3", "d")],
        )
        self.assertEqual(events[3].revision, events[4].revision)
        self.assertEqual(events[1].prev and events[1].prev.text, "a")
        self.assertEqual(list(watch), [])
        kv.compact(events[4].revision)
        with self.assertRaises(bowline.CompactedError) as compacted:
            next(kv.watch("w/1", start_revision=first.revision))
        self.assertEqual(compacted.exception.oldest, events[4].revision)

    def test_closed_watch_wakes_its_reader(self) -> None:
        watch = self.node.kv.watch("never")
        read: list[object] = []
        reader = threading.Thread(target=lambda: read.extend(watch))
        reader.start()
        watch.close()
        reader.join(10)
        self.assertFalse(reader.is_alive())
        self.assertEqual(read, [])


class Locks(NodeCase):
    def test_lock_has_one_holder_and_rising_tokens(self) -> None:
        lock = self.node.lock("lock")
        with lock as held:
            self.assertTrue(held.is_held)
            self.assertIsNone(held.lost())
            self.assertIsNone(lock.try_acquire())
            with self.assertRaises(bowline.LockTimeoutError) as late:
                self.node.lock("lock", timeout=0.1).acquire()
            self.assertIsInstance(late.exception, TimeoutError)
            self.assertTrue(late.exception.is_transient)
            first = held.token
        self.assertFalse(held.is_held)
        self.assertEqual(getattr(held.lost(), "kind", None), "released")
        with lock as held:
            self.assertGreater(held.token, first)
            self.assertEqual(Token.parse(str(held.token)), held.token)
        self.assertEqual(len({Token(1, 2), Token.parse("1.2")}), 1)
        with self.assertRaises(ValueError):
            Token.parse("1")

    def test_threads_take_turns(self) -> None:
        lock, inside, most, done = self.node.lock("lock"), 0, 0, 0

        def work() -> None:
            nonlocal inside, most, done
            for _ in range(10):
                with lock:
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.001)
                    inside -= 1
                    done += 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((most, done), (1, 40))

    def test_loss_reaches_the_holder(self) -> None:
        kv = self.node.kv
        waiter: list[object] = []
        with self.assertRaises(bowline.LostError) as lost:
            with self.node.lock("lock") as held:
                thread = threading.Thread(target=lambda: waiter.append(held.wait_lost(timeout=30)))
                thread.start()
                self.assertTrue(held.txn(then=[Op.put("a", "1")]))
                kv.delete_prefix("lock/")
                thread.join(30)
                self.assertFalse(held.is_held)
                with self.assertRaises(bowline.LostError) as refused:
                    held.txn(then=[Op.put("a", "2")])
                self.assertEqual(refused.exception.effect, "not_applied")
        self.assertEqual(lost.exception.reason and lost.exception.reason.kind, "key_deleted")
        self.assertEqual(getattr(waiter[0], "kind", None), "key_deleted")
        row = kv.get("a")
        assert row is not None
        self.assertEqual(row.text, "1")
        # An exception of the block is not replaced.
        with self.assertRaises(ZeroDivisionError):
            with self.node.lock("lock"):
                kv.delete_prefix("lock/")
                1 / 0

    def test_release_while_another_thread_waits_for_the_loss(self) -> None:
        held = self.node.lock("lock").acquire()
        reasons: list[object] = []
        threads = [threading.Thread(target=lambda: reasons.append(held.wait_lost())) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.assertIsNone(held.wait_lost(timeout=0.05))
        self.assertIsNone(held.release())
        for thread in threads:
            thread.join(10)
        self.assertEqual([getattr(reason, "kind", None) for reason in reasons], ["released"] * 3)
        with self.assertRaises(bowline.LostError):
            held.release()

    def test_collected_hold_is_released(self) -> None:
        held = self.node.lock("lock").acquire()
        del held
        gc.collect()
        self.node.lock("lock", timeout=30).acquire().release()

    def test_other_kinds_of_locks(self) -> None:
        with self.node.read_lock("rw"), self.node.read_lock("rw"):
            self.assertIsNone(self.node.write_lock("rw").try_acquire())
        with self.node.write_lock("rw"):
            self.assertIsNone(self.node.read_lock("rw").try_acquire())
        semaphore = self.node.semaphore("s", 2)
        with semaphore, semaphore:
            self.assertIsNone(semaphore.try_acquire())
        with self.assertRaises(bowline.LockError):
            self.node.semaphore("s", 2, permits=3).acquire()
        held = self.node.lock("short", max_hold=0.1, reason="test").acquire()
        reason = held.wait_lost(timeout=30)
        self.assertEqual(reason and reason.kind, "held_too_long")

    def test_transaction_can_release(self) -> None:
        held = self.node.lock("lock").acquire()
        self.assertTrue(held.txn(then=[Op.put("a", "1")], release=True))
        self.assertFalse(held.is_held)
        self.node.lock("lock", timeout=30).acquire().release()

    def test_session_ends_its_locks(self) -> None:
        with self.node.session(ttl=60, label="job") as session:
            self.assertEqual(session.ttl, 60)
            self.assertIsNone(session.end)
            held = session.lock("lock").acquire()
            self.assertIsNone(session.wait_ended(timeout=0.05))
            self.assertIsNone(self.node.lock("lock").try_acquire())
        self.assertIsNotNone(session.end)
        self.assertEqual(getattr(held.lost(), "kind", None), "session_ended")
        with self.assertRaises(bowline.SessionEndedError):
            session.lock("lock").acquire()
        self.node.lock("lock", timeout=30).acquire().release()


class Elections(NodeCase):
    def test_election_has_one_leader(self) -> None:
        election = self.node.election("jobs/leader")
        self.assertIsNone(election.leader())
        with election.observe() as observe:
            self.assertIsNone(next(observe))
            with election.campaign("host-1") as leadership:
                self.assertTrue(leadership.is_leader)
                leader = next(observe)
                self.assertEqual(leader and leader.text, "host-1")
                leadership.proclaim("host-1:9000")
                leader = election.leader()
                self.assertEqual(leader and leader.value, b"host-1:9000")
                with self.assertRaises(bowline.LockTimeoutError):
                    election.campaign("host-2", timeout=0.1)
                token = leadership.token
            self.assertFalse(leadership.is_leader)
        with election.campaign("host-2") as leadership:
            self.assertGreater(leadership.token, token)
            self.assertIsNone(leadership.resign())


class Queues(NodeCase):
    def test_items_are_delivered_until_they_are_acknowledged(self) -> None:
        queue = self.node.queue("jobs")
        queue.put("second", priority=1)
        queue.put("first")
        self.assertEqual([(item.text, item.state) for item in queue.items()], [("first", "free"), ("second", "free")])
        with self.assertRaises(ZeroDivisionError):
            with queue.take() as job:
                self.assertEqual((job.text, job.attempt), ("first", 1))
                self.assertTrue(job.is_claimed)
                1 / 0
        self.assertFalse(job.is_claimed)
        with queue.take() as job:
            self.assertEqual((job.value, job.attempt), (b"first", 2))
        job = queue.take()
        reply = job.ack(then=[Op.put("done", job.text)])
        self.assertTrue(reply)
        row = self.node.kv.get("done")
        self.assertEqual(row and row.text, "second")
        self.assertEqual(queue.len(), 0)
        self.assertIsNone(queue.try_take())
        with self.assertRaises(bowline.QueueEmptyError) as empty:
            queue.take(timeout=0.05)
        self.assertIsInstance(empty.exception, TimeoutError)

    def test_item_is_acknowledged_with_the_lock(self) -> None:
        queue = self.node.queue("jobs")
        queue.put_many(["42"])
        with queue.take() as job, self.node.lock("locks/42") as held:
            self.assertTrue(held.txn(then=[Op.put("orders/42", "paid")], ack=[job]))
        self.assertEqual(queue.len(), 0)

    def test_limits_and_dead_letters(self) -> None:
        queue = self.node.queue("jobs", limit=1, attempts_max=1)
        queue.put("bad")
        with self.assertRaises(bowline.QueueFullError):
            queue.put("another")
        queue.take().nack()
        with self.assertRaises(bowline.QueueEmptyError):
            queue.take(timeout=0.2)
        self.assertEqual([(item.text, item.attempts) for item in queue.dead_letters().items()], [("bad", 1)])
        queue.put("worse")
        with queue.take(timeout=30) as job:
            job.dead_letter("not an image")
        self.assertEqual(queue.dead_letters().items()[1].reason, "not an image")

    def test_lost_item_cannot_be_acknowledged(self) -> None:
        queue = self.node.queue("jobs")
        queue.put("42")
        with self.assertRaises(bowline.LostError):
            with queue.take() as job:
                self.node.kv.delete_prefix("jobs/claim/")
                reason = job.wait_lost(timeout=30)
                self.assertEqual(reason and reason.kind, "key_deleted")
        self.assertEqual(queue.len(), 1)


class Signals(NodeCase):
    def test_ctrl_c_interrupts_a_wait_and_leaves_the_queue(self) -> None:
        # A program that a shell starts in the background ignores Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        held = self.node.lock("lock").acquire()
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            self.node.lock("lock").acquire()
        self.assertLess(time.monotonic() - began, 1.3)
        held.release()
        # The interrupted request has left the queue: otherwise it would hold the lock now.
        self.node.lock("lock", timeout=30).acquire().release()

    def test_waiting_call_releases_the_interpreter(self) -> None:
        held = self.node.lock("lock").acquire()
        threading.Timer(0.2, held.release).start()
        self.node.lock("lock", timeout=30).acquire().release()


class Forks(NodeCase):
    def test_forked_process_is_refused_and_can_start_its_own_node(self) -> None:
        held = self.node.lock("lock").acquire()
        kv = self.node.kv
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                results = []
                for call in (lambda: kv.get("a"), held.release, held.lost, self.node.shutdown):
                    try:
                        call()
                        results.append("worked")
                    except bowline.ForkedError as error:
                        results.append(error.effect)
                # Collected objects of the parent must not touch its threads.
                del kv, held
                self.node._node = None
                gc.collect()
                with Node(self.place / "child", "child") as node:
                    node.kv.put("a", "1")
                    results.append("own node")
                os.write(write, ",".join(results).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as report:
            self.assertEqual(report.read(), "not_applied,not_applied,not_applied,not_applied,own node")
        os.waitpid(child, 0)
        self.assertTrue(held.is_held)
        held.release()


if __name__ == "__main__":
    unittest.main()
