// Uses etcd's Go client as its documentation shows, while the test that starts this program kills servers.
//
//	program SCENE ADDRESS...
//
// It runs until its standard input ends, and prints its steps as lines of JSON, which the test checks. If it finds an
// error, it prints that on standard error and fails.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Maximum duration of a call: time for an election on a busy machine.
const patience = 2 * time.Minute

// TTL of sessions, long enough that none expires.
const sessionSeconds = 60

// Pause before a retry.
const again = 20 * time.Millisecond

var scenes = map[string]func(*world){
	"mutex": mutexes,
	"cron":  cron,
	"watch": watched,
	"stm":   transactions,
	// Must run alone: it needs a cluster with default timeouts.
	"failover": failover,
}

type world struct {
	*clientv3.Client
	ctx     context.Context
	stopped atomic.Bool
	out     sync.Mutex
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 || scenes[os.Args[1]] == nil {
		log.Fatal("program SCENE ADDRESS...")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[2:], DialTimeout: 10 * time.Second})
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w := &world{Client: client, ctx: ctx}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		check(err)
		w.stopped.Store(true)
	}()
	scenes[os.Args[1]](w)
}

// One count by a lock holder or leader: the create revision of its key, and the value and revision of the counter.
type hold struct {
	Created int64 `json:"created"`
	Value   int64 `json:"value"`
	Put     int64 `json:"put"`
}

func (w *world) going() bool { return !w.stopped.Load() }

func (w *world) say(what any) {
	w.out.Lock()
	defer w.out.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(what))
}

// Returns the value of a key as a number, and its mod revision; zeros if the key does not exist.
func (w *world) row(key string) (value int64, revision int64) {
	response := w.get(key)
	if len(response.Kvs) == 0 {
		return 0, 0
	}
	value, err := strconv.ParseInt(string(response.Kvs[0].Value), 10, 64)
	check(err)
	return value, response.Kvs[0].ModRevision
}

func (w *world) get(key string, options ...clientv3.OpOption) *clientv3.GetResponse {
	for begun := time.Now(); ; time.Sleep(again) {
		response, err := w.Get(w.ctx, key, options...)
		if err == nil {
			return response
		}
		if time.Since(begun) > patience {
			log.Fatal("no server responded: ", err)
		}
	}
}

func (w *world) session() *concurrency.Session {
	for begun := time.Now(); ; time.Sleep(again) {
		session, err := concurrency.NewSession(w.Client, concurrency.WithTTL(sessionSeconds))
		if err == nil {
			return session
		}
		if time.Since(begun) > patience {
			log.Fatal("no session was created: ", err)
		}
	}
}

// Closes a session, and retries until its lease is revoked.
func (w *world) end(session *concurrency.Session) {
	err := session.Close()
	for err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		time.Sleep(again)
		_, err = w.Revoke(w.ctx, session.Lease())
	}
}

// Fails if the session has ended, which no session may do while it is in use.
func alive(session *concurrency.Session) {
	select {
	case <-session.Done():
		log.Fatal("a session ended although it was renewed")
	default:
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
