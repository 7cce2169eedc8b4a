package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// RebuildRequests returns the write requests that the servers applied, in the order of their revisions, for servers
// without etcd's write-ahead log. It needs the requests of all clients and all their watches.
//
// A request with a reply is placed at the revision of the reply. A request without a reply is placed at a revision if
// it changes there exactly what watches and reads have seen of that revision. Values are unique, so a put without a
// reply fits one revision only. Each revision up to the last one must have a request. The validators then compare every
// watch with the result, so an event that one watch missed, or that no request has made, is found.
//
// Requests that changed nothing are left out. Compactions with a reply are left out, because they have no revision.
// Compactions without a reply are at the end: the validators then consider both that they were applied and that they
// were not. Grants of leases are at the beginning: they have no revision either.
func RebuildRequests(operations []porcupine.Operation, watches []WatchOperation) ([]EtcdRequest, error) {
	seen := seenChanges{}
	for _, watch := range watches {
		all := watch.Request.Key == "" && watch.Request.WithPrefix
		for _, response := range watch.Responses {
			for _, event := range response.Events {
				seen.add(event.Revision, event.Event, all)
			}
		}
	}
	var grants, revokes, unknown, compactions []porcupine.Operation
	replied := map[int64]EtcdRequest{}
	last := int64(1)
	for _, op := range operations {
		request, response := op.Input.(EtcdRequest), op.Output.(MaybeEtcdResponse)
		seen.addReply(request, response)
		last = max(last, response.Revision)
		switch {
		case request.IsRead() || request.Type == Defragment || response.ClientError != "":
		case request.Type == Compact:
			if response.Error != "" {
				compactions = append(compactions, op)
			}
		case request.Type == LeaseGrant:
			// A client cannot use a lease without its id.
			if response.Error == "" {
				grants = append(grants, op)
			}
		case response.Error != "":
			unknown = append(unknown, op)
		case request.Type == LeaseRevoke:
			revokes = append(revokes, op)
		case changed(request, response):
			if other, ok := replied[response.Revision]; ok {
				return nil, fmt.Errorf("revision %d: two replies, to %s and to %s", response.Revision,
					describeEtcdRequest(other), describeEtcdRequest(request))
			}
			replied[response.Revision] = request
		}
	}
	for revision := range seen {
		last = max(last, revision)
	}
	slices.SortStableFunc(unknown, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })

	state := freshEtcdState(ModelKeys(operations))
	var requests []EtcdRequest
	apply := func(request EtcdRequest) {
		state, _ = state.Step(request)
		requests = append(requests, request)
	}
	for _, op := range grants {
		apply(op.Input.(EtcdRequest))
	}
	for revision := int64(2); revision <= last; revision++ {
		fits := func(request EtcdRequest) bool {
			after, response := state.Step(request)
			return after.Revision == revision && seen.match(revision, toWatchEvents(&state, request, response))
		}
		if request, ok := replied[revision]; ok {
			if after, _ := state.Step(request); after.Revision != revision {
				return nil, fmt.Errorf("revision %d: the reply to %s is not possible after the revisions before it",
					revision, describeEtcdRequest(request))
			}
			apply(request)
			continue
		}
		if i := slices.IndexFunc(revokes, func(op porcupine.Operation) bool {
			return op.Output.(MaybeEtcdResponse).Revision == revision && fits(op.Input.(EtcdRequest))
		}); i >= 0 {
			apply(revokes[i].Input.(EtcdRequest))
			continue
		}
		var candidates []int
		for i, op := range unknown {
			if fits(op.Input.(EtcdRequest)) {
				candidates = append(candidates, i)
			}
		}
		switch {
		case len(candidates) == 0:
			return nil, fmt.Errorf("revision %d: no request without a reply explains what clients have seen: %s", revision,
				seen.describe(revision))
		case len(candidates) > 1 && len(seen[revision]) == 0:
			return nil, fmt.Errorf("revision %d: no client has seen it, and %d requests without a reply explain it",
				revision, len(candidates))
		}
		// Candidates that explain the same changes differ in nothing that the validators use.
		apply(unknown[candidates[0]].Input.(EtcdRequest))
		unknown = slices.Delete(unknown, candidates[0], candidates[0]+1)
	}
	for _, op := range compactions {
		requests = append(requests, op.Input.(EtcdRequest))
	}
	return requests, nil
}

// changed reports whether a transaction with a reply made a revision.
func changed(request EtcdRequest, response MaybeEtcdResponse) bool {
	operations := request.Txn.OperationsOnSuccess
	if response.Txn.Failure {
		operations = request.Txn.OperationsOnFailure
	}
	for i, op := range operations {
		if op.Type == PutOperation || op.Type == DeleteOperation && response.Txn.Results[i].Deleted != 0 {
			return true
		}
	}
	return false
}

// seenChanges has, by revision, the changes that clients have seen.
type seenChanges map[int64][]seenChange

type seenChange struct {
	Event
	// A watch of all keys has seen it, so it has seen the whole revision.
	all bool
}

func (s seenChanges) add(revision int64, event Event, all bool) {
	for i, other := range s[revision] {
		if other.Event == event {
			s[revision][i].all = other.all || all
			return
		}
	}
	s[revision] = append(s[revision], seenChange{event, all})
}

// addReply adds what a reply has of earlier puts.
func (s seenChanges) addReply(request EtcdRequest, response MaybeEtcdResponse) {
	add := func(kvs []KeyValue) {
		for _, kv := range kvs {
			s.add(kv.ModRevision, Event{Type: PutOperation, Key: kv.Key, Value: kv.Value}, false)
		}
	}
	if response.Range != nil && !request.Range.KeysOnly {
		add(response.Range.KVs)
	}
	if response.Txn != nil {
		for _, result := range response.Txn.Results {
			add(result.KVs)
		}
	}
}

// match reports whether events may be all changes of a revision.
func (s seenChanges) match(revision int64, events []PersistedEvent) bool {
	all := 0
	for _, change := range s[revision] {
		if !slices.ContainsFunc(events, func(event PersistedEvent) bool { return event.Event == change.Event }) {
			return false
		}
		if change.all {
			all++
		}
	}
	return all == 0 || all == len(events)
}

func (s seenChanges) describe(revision int64) string {
	var changes []string
	for _, change := range s[revision] {
		changes = append(changes, fmt.Sprintf("%s %q %q", change.Type, change.Key, change.Value.Value))
	}
	return strings.Join(changes, ", ")
}
