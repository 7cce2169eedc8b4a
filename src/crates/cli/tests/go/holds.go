package main

import (
	"log"
	"strconv"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// The lock, and the counter that it guards. Other kinds of clients use the same lock queue.
const (
	lockName    = "shared"
	lockCounter = "shared-counter"
)

// Two goroutines, each with a session, contend for one mutex.
func mutexes(w *world) {
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for w.going() {
				w.contend(&inside)
			}
		})
	}
	all.Wait()
}

// Locks and unlocks with one session, until a call fails, so that its outcome is unknown.
func (w *world) contend(inside *atomic.Int32) {
	session := w.session()
	defer w.end(session)
	mutex := concurrency.NewMutex(session, lockName)
	for w.going() {
		if mutex.Lock(w.ctx) != nil {
			return
		}
		if inside.Add(1) != 1 {
			log.Fatal("two goroutines hold the lock")
		}
		created := w.get(mutex.Key()).Kvs[0].CreateRevision
		value, _ := w.row(lockCounter)
		w.say(hold{created, value + 1, w.write(lockCounter, value+1)})
		alive(session)
		inside.Add(-1)
		if mutex.Unlock(w.ctx) != nil {
			return
		}
	}
}

// Puts a value, guarded only by the lock. If the outcome is unknown, reads the key: only the holder writes it.
func (w *world) write(key string, value int64) int64 {
	for {
		response, err := w.Put(w.ctx, key, strconv.FormatInt(value, 10))
		if err == nil {
			return response.Header.Revision
		}
		if found, revision := w.row(key); found == value {
			return revision
		}
	}
}

const (
	cronName = "cron"
	cronJobs = "cron-jobs"
	// Number of jobs that a leader does before it resigns.
	jobsOfLeader = 3
)

// Three candidates contend for leadership. The leader does jobs, each once and in order. Another goroutine observes the
// leaders.
func cron(w *world) {
	var all sync.WaitGroup
	go w.observe()
	for at := range 3 {
		all.Go(func() {
			for w.going() {
				w.lead(strconv.Itoa(at))
			}
		})
	}
	all.Wait()
}

func (w *world) lead(name string) {
	session := w.session()
	defer w.end(session)
	election := concurrency.NewElection(session, cronName)
	if election.Campaign(w.ctx, name) != nil {
		return
	}
	for job := range jobsOfLeader {
		number, _ := w.row(cronJobs)
		number++
		leads := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
		put := clientv3.OpPut(cronJobs, strconv.FormatInt(number, 10))
		for {
			response, err := w.Txn(w.ctx).If(leads).Then(put).Commit()
			if err == nil && !response.Succeeded {
				log.Fatal("a job was rejected although its candidate is the leader")
			}
			done, revision := w.row(cronJobs)
			if done == number {
				w.say(hold{election.Rev(), number, revision})
				break
			}
			if err == nil || done > number {
				log.Fatal("another candidate has done a job of the leader")
			}
		}
		if job == 0 && election.Proclaim(w.ctx, name+", busy") != nil {
			break
		}
	}
	alive(session)
	if election.Resign(w.ctx) != nil {
		return
	}
}

// Observes the leaders, whose revisions must never go back.
func (w *world) observe() {
	session := w.session()
	defer w.end(session)
	created, modified, first := int64(0), int64(0), true
	for w.ctx.Err() == nil {
		// The channel is closed when the connection to a server is lost.
		for seen := range concurrency.NewElection(session, cronName).Observe(w.ctx) {
			leader := seen.Kvs[0]
			if leader.CreateRevision < created || leader.CreateRevision == created && leader.ModRevision < modified {
				log.Fatalf("observed %v, %v after %v, %v", leader.CreateRevision, leader.ModRevision, created, modified)
			}
			created, modified = leader.CreateRevision, leader.ModRevision
			if first {
				w.say(map[string]string{"observed": string(leader.Value)})
				first = false
			}
		}
	}
}
