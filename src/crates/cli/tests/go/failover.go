package main

import (
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	failoverKey = "failover"
	// Each client has its own connections and streams, like a separate program.
	failoverClients = 8
	// TTL of the sessions, in seconds.
	failoverSeconds = 30
)

// A client with a session and a watch, both of which require a leader.
type follower struct {
	session *concurrency.Session
	seen    atomic.Int64
}

// Sessions and watches that require a leader must not end while leaders are killed.
func failover(w *world) {
	var followers []*follower
	for range failoverClients {
		followers = append(followers, w.follow())
	}
	for number := int64(1); w.going(); number++ {
		for begun := time.Now(); ; time.Sleep(again) {
			_, err := w.Put(w.ctx, failoverKey, strconv.FormatInt(number, 10))
			if err == nil {
				break
			}
			if time.Since(begun) > patience {
				log.Fatal("no put succeeded: ", err)
			}
		}
		for at, follower := range followers {
			for begun := time.Now(); follower.seen.Load() < number; time.Sleep(again) {
				alive(follower.session)
				if time.Since(begun) > patience {
					log.Fatalf("watch %d has not received event %d", at, number)
				}
			}
		}
		w.say(map[string]int64{"seen": number})
		time.Sleep(again)
	}
	for _, follower := range followers {
		alive(follower.session)
	}
}

func (w *world) follow() *follower {
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[2:], DialTimeout: 10 * time.Second})
	check(err)
	ctx := clientv3.WithRequireLeader(w.ctx)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(failoverSeconds), concurrency.WithContext(ctx))
	check(err)
	follower := &follower{session: session}
	watch := client.Watch(ctx, failoverKey)
	go func() {
		for response := range watch {
			if err := response.Err(); err != nil {
				log.Fatal("a watch ended: ", err)
			}
			for _, event := range response.Events {
				number, err := strconv.ParseInt(string(event.Kv.Value), 10, 64)
				check(err)
				follower.seen.Store(number)
			}
		}
		// At its end, the program ends its watches.
		if w.going() {
			log.Fatal("a watch ended without an error")
		}
	}()
	return follower
}
