package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// informer keeps a copy of the ConfigMaps of a namespace.
type informer struct {
	space string
	store cache.Store
	// Number of events that were older than the copy.
	backwards atomic.Int64
}

func newInformer(t *testing.T, space string) *informer {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(api.client, 0, informers.WithNamespace(space))
	shared := factory.Core().V1().ConfigMaps().Informer()
	i := &informer{space: space, store: shared.GetStore()}
	must[cache.ResourceEventHandlerRegistration](t)(shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if version(after.(*corev1.ConfigMap)) < version(before.(*corev1.ConfigMap)) {
				i.backwards.Add(1)
			}
		},
	}))
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	factory.Start(stop)
	if !cache.WaitForCacheSync(stop, shared.HasSynced) {
		t.Fatal("no synchronization")
	}
	return i
}

func version(o metav1.Object) int64 {
	v, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	check(err)
	return v
}

// exact waits until the copy equals the objects.
func (i *informer) exact(t *testing.T) {
	t.Helper()
	list := must[*corev1.ConfigMapList](t)(api.client.CoreV1().ConfigMaps(i.space).List(t.Context(), metav1.ListOptions{}))
	want := map[string]string{}
	for _, item := range list.Items {
		want[item.Name] = item.ResourceVersion
	}
	eventually(t, time.Minute, func() error {
		got := map[string]string{}
		for _, item := range i.store.List() {
			got[item.(*corev1.ConfigMap).Name] = item.(*corev1.ConfigMap).ResourceVersion
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the informer has %d objects of %d, or old ones", len(got), len(want))
		}
		return nil
	})
	if n := i.backwards.Load(); n > 0 {
		t.Errorf("%d events took the informer back to an earlier version", n)
	}
}

func TestInformerSurvivesRestartOfAPIServer(t *testing.T) {
	o := configMaps(t)
	names := o.fill(t, 1000)
	i := newInformer(t, strings.ToLower(t.Name()))
	o.churn(t, "a", 40)
	i.exact(t)
	o.remove(t, names[5])
	api.restart(t, "--etcd-compaction-interval=0")
	o.remove(t, names[6])
	o.set(t, names[7], 1)
	i.exact(t)
}

// counter is a Secret with one number for each worker, which only this worker increments, and their sum.
type counter struct {
	t      *testing.T
	client kubernetes.Interface
	space  string
	// Number of acknowledged increments.
	acknowledged atomic.Int64
	// Number of requests with an unknown outcome.
	unknown atomic.Int64
}

func number(data map[string][]byte, key string) int64 {
	n, err := strconv.ParseInt(string(data[key]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// work increments the numbers until `stop` is closed. If the outcome of a request is unknown, the next read shows whether
// it was applied. Returns the number of increments.
func (c *counter) work(worker string, stop <-chan struct{}) int64 {
	secrets := c.client.CoreV1().Secrets(c.space)
	mine, pending := int64(0), false
	for {
		select {
		case <-stop:
			if !pending {
				return mine
			}
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		secret, err := secrets.Get(ctx, "counter", metav1.GetOptions{})
		if err != nil {
			cancel()
			time.Sleep(20 * time.Millisecond)
			continue
		}
		switch stored := number(secret.Data, worker); {
		case stored == mine+1 && pending:
			mine, pending = mine+1, false
			c.acknowledged.Add(1)
		case stored != mine:
			c.t.Errorf("%s has %d acknowledged increments, but the store has %d (pending: %v)", worker, mine, stored, pending)
			cancel()
			return mine
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[worker] = []byte(strconv.FormatInt(mine+1, 10))
		secret.Data["sum"] = []byte(strconv.FormatInt(number(secret.Data, "sum")+1, 10))
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		cancel()
		switch {
		case err == nil:
			mine, pending = mine+1, false
			c.acknowledged.Add(1)
		case apierrors.IsConflict(err):
			// Not applied. An earlier request with an unknown outcome may be.
		default:
			pending = true
			c.unknown.Add(1)
		}
	}
}

// Kills the leader of the key-value store KILLS times (default 5), while four workers increment a counter, a watch follows
// it and an informer follows 1,000 other objects.
func TestLeaderKillsLoseNothing(t *testing.T) {
	kills := 5
	if text := os.Getenv("KILLS"); text != "" {
		kills = must[int](t)(strconv.Atoi(text))
	}
	o := configMaps(t)
	space := strings.ToLower(t.Name())
	names := o.fill(t, 1000)
	follower := newInformer(t, space)
	created := must[*corev1.Secret](t)(api.client.CoreV1().Secrets(space).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "counter"}}, metav1.CreateOptions{}))

	w := must[*watchtools.RetryWatcher](t)(watchtools.NewRetryWatcherWithContext(t.Context(), created.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = "metadata.name=counter"
			return api.client.CoreV1().Secrets(space).Watch(ctx, options)
		},
	}))
	defer w.Stop()
	var watched atomic.Int64
	go func() {
		for event := range w.ResultChan() {
			secret, is := event.Object.(*corev1.Secret)
			if !is {
				t.Errorf("after %d events: %v", watched.Load(), event)
				return
			}
			if event.Type == watch.Bookmark {
				continue
			}
			if sum := number(secret.Data, "sum"); sum != watched.Load()+1 {
				t.Errorf("the watch shows %d after %d", sum, watched.Load())
			}
			watched.Store(number(secret.Data, "sum"))
		}
	}()

	c := &counter{t: t, client: api.client, space: space}
	stop := make(chan struct{})
	var all sync.WaitGroup
	totals := make([]int64, 4)
	for i := range totals {
		all.Go(func() { totals[i] = c.work(fmt.Sprintf("w%d", i), stop) })
	}
	var changes atomic.Int64
	all.Go(func() {
		for value := 1; ; value++ {
			select {
			case <-stop:
				return
			default:
			}
			name := names[rand.Intn(len(names))]
			if _, err := o.Update(context.Background(), o.object(name, value), metav1.UpdateOptions{}); err == nil {
				changes.Add(1)
			}
		}
	})
	// Waits for 20 more increments.
	progress := func() {
		t.Helper()
		from := c.acknowledged.Load()
		eventually(t, time.Minute, func() error {
			if now := c.acknowledged.Load(); now < from+20 {
				return fmt.Errorf("only %d increments", now-from)
			}
			return nil
		})
	}
	stopped := sync.OnceFunc(func() { close(stop); all.Wait() })
	defer stopped()
	for range kills {
		progress()
		var victim *member
		eventually(t, time.Minute, func() (err error) {
			victim, err = leader()
			return err
		})
		victim.kill()
		progress()
		victim.start()
		eventually(t, time.Minute, victim.healthy)
	}
	progress()
	stopped()

	var sum int64
	secret := must[*corev1.Secret](t)(api.client.CoreV1().Secrets(space).Get(t.Context(), "counter", metav1.GetOptions{}))
	for i, total := range totals {
		sum += total
		if stored := number(secret.Data, fmt.Sprintf("w%d", i)); stored != total {
			t.Errorf("worker %d has %d acknowledged increments, but the store has %d", i, total, stored)
		}
	}
	if stored := number(secret.Data, "sum"); stored != sum {
		t.Errorf("the sum is %d, not %d", stored, sum)
	}
	eventually(t, time.Minute, func() error {
		if n := watched.Load(); n != sum {
			return fmt.Errorf("the watch shows %d, not %d", n, sum)
		}
		return nil
	})
	follower.exact(t)
	fmt.Printf("%d kills: %d increments (%d requests with an unknown outcome), %d changes of %d other objects\n",
		kills, sum, c.unknown.Load(), changes.Load(), len(names))
}

// Kills all members at once. The keys of Events belong to leases, which must still expire.
func TestKillOfAllMembersLosesNothing(t *testing.T) {
	o := secrets(t)
	space := strings.ToLower(t.Name())
	follower := newInformer(t, space)
	start := o.create(t, "start", 0).GetResourceVersion()
	want := o.churn(t, "a", 63)
	cached := objectsOf(api, "ConfigMap", space)
	cached.churn(t, "a", 38)
	events := api.client.CoreV1().Events(space)
	for i := range 10 {
		must[*corev1.Event](t)(events.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: space},
		}, metav1.CreateOptions{}))
	}
	before := values(t, o.list(t, metav1.ListOptions{}))
	for _, m := range members {
		m.kill()
	}
	for _, m := range members {
		m.start()
	}
	for _, m := range members {
		eventually(t, time.Minute, m.healthy)
	}
	eventually(t, time.Minute, api.ready)
	same(t, "objects", values(t, o.list(t, metav1.ListOptions{})), before)
	want = append(want, o.churn(t, "b", 63)...)
	expect(t, o.watch(t, metav1.ListOptions{ResourceVersion: start}), want)
	cached.churn(t, "b", 38)
	follower.exact(t)
	eventually(t, time.Minute, func() error {
		if n := len(must[*corev1.EventList](t)(events.List(t.Context(), metav1.ListOptions{})).Items); n > 0 {
			return fmt.Errorf("%d events are left", n)
		}
		return nil
	})
}

func TestHealthFollowsTheMajority(t *testing.T) {
	o := configMaps(t)
	names := o.fill(t, 10)
	paths := []string{"/readyz", "/readyz/etcd", "/livez/etcd"}
	healthy := func() error {
		for _, path := range paths {
			if err := get(api.http, api.url+path); err != nil {
				return err
			}
		}
		return nil
	}
	eventually(t, time.Minute, healthy)
	for _, m := range members[:2] {
		m.kill()
		defer func() {
			if m.running == nil {
				m.start()
			}
		}()
	}
	for _, path := range paths {
		eventually(t, time.Minute, func() error {
			if err := get(api.http, api.url+path); err == nil {
				return fmt.Errorf("%s is healthy without a majority", path)
			}
			return nil
		})
	}
	// Without a majority, the cache still answers, and a write fails.
	list := o.list(t, metav1.ListOptions{ResourceVersion: "0"})
	if n := len(values(t, list)); n != len(names) {
		t.Errorf("the cache has %d objects", n)
	}
	limited, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if got, err := o.Create(limited, o.object("lost", 0), metav1.CreateOptions{}); err == nil {
		t.Errorf("create without a majority: %v", got)
	}
	members[0].start()
	eventually(t, time.Minute, healthy)
	members[1].start()
	for _, m := range members {
		eventually(t, time.Minute, m.healthy)
	}
	o.set(t, names[0], 1)
	if got := values(t, o.list(t, metav1.ListOptions{})); !slices.Contains(got, names[0]+"=1") {
		t.Errorf("after the failure: %v", got)
	}
}
