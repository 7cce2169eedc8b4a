package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	watchedKeys = "watched/"
	keysWatched = 5
	accounts    = 4
)

// One goroutine writes and one watches. The watch must receive every change once, in order, with the previous key-value
// pair, and progress notifications in between.
func watched(w *world) {
	acknowledged := make(chan int64, 1<<20)
	var last int64
	var all sync.WaitGroup
	all.Go(func() {
		for number := int64(0); w.going(); number++ {
			key := watchedKeys + strconv.FormatInt(number%keysWatched, 10)
			response, err := w.Put(w.ctx, key, strconv.FormatInt(number, 10))
			if err == nil {
				acknowledged <- response.Header.Revision
				last = response.Header.Revision
			}
			// Pauses give the server a reason to send progress notifications.
			time.Sleep(again / 4)
		}
		close(acknowledged)
	})
	rows := map[string]*clientv3.Event{}
	var seen []int64
	var highest int64
	silent, reported := false, false
	enough := func() bool {
		if !w.going() && !silent {
			all.Wait()
			silent = true
		}
		return silent && highest >= last && reported
	}
	for !enough() {
		options := []clientv3.OpOption{
			clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithRev(highest + 1),
		}
		ctx, cancel := context.WithCancel(w.ctx)
		for response := range w.Watch(clientv3.WithRequireLeader(ctx), watchedKeys, options...) {
			if err := response.Err(); err != nil {
				// The watch requires a leader, and is resumed after the last event.
				if !errors.Is(err, rpctypes.ErrNoLeader) {
					log.Fatal("a watch ended: ", err)
				}
				break
			}
			if response.IsProgressNotify() {
				if response.Header.Revision < highest {
					log.Fatal("the progress has gone back")
				}
				reported = true
			}
			for _, event := range response.Events {
				key := string(event.Kv.Key)
				before := rows[key]
				switch {
				case event.Kv.ModRevision <= highest:
					log.Fatal("duplicate or late event: ", event)
				case before == nil && (event.PrevKv != nil || event.Kv.Version != 1),
					before != nil && event.PrevKv == nil,
					before != nil && string(event.PrevKv.Value) != string(before.Kv.Value),
					before != nil && event.Kv.Version != before.Kv.Version+1:
					log.Fatal("missing event before ", event)
				}
				highest = event.Kv.ModRevision
				rows[key] = event
				seen = append(seen, highest)
				if len(seen)%10 == 0 {
					w.say(map[string]int64{"seen": highest})
				}
			}
			if enough() {
				break
			}
		}
		cancel()
	}
	all.Wait()
	at := 0
	for revision := range acknowledged {
		for at < len(seen) && seen[at] < revision {
			at++
		}
		if at == len(seen) || seen[at] != revision {
			log.Fatal("no event for the acknowledged write at revision ", revision)
		}
	}
}

// Several goroutines move money between few accounts. Each transaction writes a key of its own, so that a retry after a
// lost response applies it only once. Another goroutine adds up the accounts meanwhile.
func transactions(w *world) {
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for number := 0; w.going(); number++ {
				w.move(fmt.Sprintf("moves/%d/%d", worker, number), worker, number)
				w.say(map[string]int{"moved": number})
			}
		})
	}
	all.Go(func() {
		for w.going() {
			if sum, err := w.sum(); err == nil && sum != 0 {
				log.Fatal("the sum of the accounts is not 0, but ", sum)
			}
		}
	})
	all.Wait()
	moves := w.get("moves/", clientv3.WithPrefix(), clientv3.WithCountOnly()).Count
	if total, _ := w.row("total"); total != moves {
		log.Fatalf("there are %d moves, but the total is %d", moves, total)
	}
}

func (w *world) move(mark string, worker, number int) {
	from, to := account(worker+number), account(worker+number+1+number%(accounts-1))
	move := func(stm concurrency.STM) error {
		if stm.Get(mark) != "" {
			return nil
		}
		stm.Put(from, plus(stm.Get(from), -1))
		stm.Put(to, plus(stm.Get(to), 1))
		stm.Put("total", plus(stm.Get("total"), 1))
		stm.Put(mark, "done")
		return nil
	}
	for begun := time.Now(); ; time.Sleep(again) {
		_, err := concurrency.NewSTM(w.Client, move, concurrency.WithAbortContext(w.ctx))
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			log.Fatal("a transaction failed: ", err)
		}
	}
}

func (w *world) sum() (sum int, err error) {
	_, err = concurrency.NewSTM(w.Client, func(stm concurrency.STM) error {
		sum = 0
		for at := range accounts {
			value, _ := strconv.Atoi(stm.Get(account(at)))
			sum += value
		}
		return nil
	}, concurrency.WithAbortContext(w.ctx))
	return sum, err
}

func account(at int) string { return "accounts/" + strconv.Itoa(at%accounts) }

func plus(value string, more int) string {
	number, _ := strconv.Atoi(value)
	return strconv.Itoa(number + more)
}
