package kubernetes

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, open := <-w.ResultChan():
		if !open {
			t.Fatal("the watch ended")
		}
		return event
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return watch.Event{}
	}
}

func (o objects) watch(t *testing.T, options metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := o.Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// churn creates, changes and deletes objects, and returns the events that a watch must deliver.
func (o objects) churn(t *testing.T, prefix string, count int) []string {
	t.Helper()
	var events []string
	for i := range count {
		name := fmt.Sprintf("%s%d", prefix, i%7)
		switch i / 7 % 3 {
		case 0:
			o.create(t, name, i)
			events = append(events, fmt.Sprintf("ADDED %s=%d", name, i))
		case 1:
			o.set(t, name, i)
			events = append(events, fmt.Sprintf("MODIFIED %s=%d", name, i))
		default:
			o.remove(t, name)
			events = append(events, fmt.Sprintf("DELETED %s=%d", name, i-7))
		}
	}
	return events
}

// expect reads events and compares them. Their revisions must rise. Returns the last one.
func expect(t *testing.T, w watch.Interface, want []string) string {
	t.Helper()
	var got []string
	last := int64(0)
	for len(got) < len(want) {
		event := next(t, w)
		object, is := event.Object.(*unstructured.Unstructured)
		if !is || event.Type == watch.Error {
			t.Fatalf("after %d of %d events: %v", len(got), len(want), event)
		}
		revision := version(object)
		if revision <= last {
			t.Fatalf("revision %d after %d", revision, last)
		}
		last = revision
		if event.Type != watch.Bookmark {
			got = append(got, fmt.Sprintf("%s %s=%d", event.Type, object.GetName(), valueOf(t, object)))
		}
	}
	same(t, "events", got, want)
	return strconv.FormatInt(last, 10)
}

func TestWatchFromRevisionSeesEachChangeOnce(t *testing.T) { watchFromRevision(t, secrets(t)) }
func TestWatchOfTheCacheSeesEachChangeOnce(t *testing.T)   { watchFromRevision(t, configMaps(t)) }

func watchFromRevision(t *testing.T, o objects) {
	start := o.create(t, "start", 0).GetResourceVersion()
	want := o.churn(t, "a", 210)
	w := o.watch(t, metav1.ListOptions{ResourceVersion: start})
	want = append(want, o.churn(t, "b", 210)...)
	expect(t, w, want)
}

// The cache gets the revision of a bookmark from the key-value store's notifications.
func TestWatchSendsBookmarks(t *testing.T) {
	o := configMaps(t)
	start := o.create(t, "start", 0)
	limit := int64(6)
	w := o.watch(t, metav1.ListOptions{ResourceVersion: start.GetResourceVersion(), AllowWatchBookmarks: true, TimeoutSeconds: &limit})
	// Raises the revision without an event for the watch or the cache of ConfigMaps.
	secret := objectsOf(api, "Secret", strings.ToLower(t.Name())).create(t, "other", 0)
	last := int64(0)
	for event := range w.ResultChan() {
		if event.Type != watch.Bookmark {
			t.Fatalf("event %v", event)
		}
		last = version(event.Object.(*unstructured.Unstructured))
	}
	if last < version(secret) {
		t.Fatalf("the last bookmark has revision %d, below %d", last, version(secret))
	}
}

// With sendInitialEvents, a watch starts with all objects and a bookmark.
func TestStreamingListIsComplete(t *testing.T) {
	o := configMaps(t)
	names := o.fill(t, 1000)
	yes := true
	w := o.watch(t, metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	var got []string
	for {
		event := next(t, w)
		object := event.Object.(*unstructured.Unstructured)
		if event.Type == watch.Bookmark {
			if object.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				t.Fatalf("bookmark: %v", object)
			}
			break
		}
		if event.Type != watch.Added {
			t.Fatalf("event %v", event)
		}
		got = append(got, object.GetName())
	}
	same(t, "objects", got, names)
	expect(t, w, o.churn(t, "a", 42))
}

// The key-value store keeps the history of a Secret, so the watch continues at the revision where it ended.
func TestWatchResumesAfterRestartOfAPIServer(t *testing.T) {
	o := secrets(t)
	start := o.create(t, "start", 0).GetResourceVersion()
	w := o.watch(t, metav1.ListOptions{ResourceVersion: start})
	last := expect(t, w, o.churn(t, "a", 42))
	want := o.churn(t, "b", 42)
	api.restart(t, "--etcd-compaction-interval=0")
	for range w.ResultChan() {
		// Ends because the connection broke.
	}
	want = append(want, o.churn(t, "c", 42)...)
	expect(t, o.watch(t, metav1.ListOptions{ResourceVersion: last}), want)
}

// kube-apiserver compacts the key-value store every two seconds.
func TestCompactionKeepsRunningWatches(t *testing.T) {
	o := secrets(t)
	cached := objectsOf(api, "ConfigMap", strings.ToLower(t.Name()))
	api.restart(t, "--etcd-compaction-interval=2s")
	t.Cleanup(func() { api.restart(t, "--etcd-compaction-interval=0") })
	start := o.create(t, "start", 0).GetResourceVersion()
	cachedStart := cached.create(t, "start", 0).GetResourceVersion()
	w := o.watch(t, metav1.ListOptions{ResourceVersion: start})
	cachedWatch := cached.watch(t, metav1.ListOptions{ResourceVersion: cachedStart})
	var want, cachedWant []string
	compactions, last := 0, int64(0)
	deadline := time.Now().Add(2 * time.Minute)
	for i := 0; compactions < 3; i++ {
		if time.Now().After(deadline) {
			t.Fatalf("%d compactions", compactions)
		}
		want = append(want, o.churn(t, fmt.Sprintf("n%d-", i), 21)...)
		cachedWant = append(cachedWant, cached.churn(t, fmt.Sprintf("n%d-", i), 21)...)
		// kube-apiserver writes the compacted revision to this key.
		reply := must[*clientv3.GetResponse](t)(etcd.Get(t.Context(), "compact_rev_key"))
		if len(reply.Kvs) == 1 && reply.Kvs[0].ModRevision != last {
			compactions++
			last = reply.Kvs[0].ModRevision
		}
	}
	expect(t, w, want)
	expect(t, cachedWatch, cachedWant)
	old := must[int64](t)(strconv.ParseInt(start, 10, 64))
	eventually(t, time.Minute, func() error {
		if _, err := etcd.Get(t.Context(), "any", clientv3.WithRev(old)); err != rpctypes.ErrCompacted {
			return fmt.Errorf("read at revision %d: %v", old, err)
		}
		return nil
	})
	// Starts at a compacted revision. The error comes as an event.
	event := next(t, o.watch(t, metav1.ListOptions{ResourceVersion: start}))
	if err := apierrors.FromObject(event.Object); event.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Fatalf("watch of a compacted revision: %v", event)
	}
	for o, revision := range map[objects]string{o: start, cached: cachedStart} {
		eventually(t, time.Minute, func() error {
			_, err := o.List(t.Context(), metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
			if !apierrors.IsResourceExpired(err) {
				return fmt.Errorf("list of %s at a compacted revision: %v", o.kind, err)
			}
			return nil
		})
	}
}
