package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// must fails the test with an error, else returns the value.
func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// namespace creates a namespace with the test's name.
func namespace(t *testing.T) string {
	t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(t.Name())}}
	return must[*corev1.Namespace](t)(api.client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{})).Name
}

// objects are the ConfigMaps or Secrets of a namespace. The annotation "value" of an object is its value.
type objects struct {
	dynamic.ResourceInterface
	kind string
}

func configMaps(t *testing.T) objects { return objectsOf(api, "ConfigMap", namespace(t)) }
func secrets(t *testing.T) objects    { return objectsOf(api, "Secret", namespace(t)) }

func objectsOf(a *apiserver, kind, space string) objects {
	resource := schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind) + "s"}
	return objects{a.dynamic.Resource(resource).Namespace(space), kind}
}

func (o objects) object(name string, value int) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("v1")
	u.SetKind(o.kind)
	u.SetName(name)
	u.SetAnnotations(map[string]string{"value": strconv.Itoa(value)})
	return u
}

func valueOf(t *testing.T, u *unstructured.Unstructured) int {
	t.Helper()
	return must[int](t)(strconv.Atoi(u.GetAnnotations()["value"]))
}

func (o objects) create(t *testing.T, name string, value int) *unstructured.Unstructured {
	t.Helper()
	return must[*unstructured.Unstructured](t)(o.Create(t.Context(), o.object(name, value), metav1.CreateOptions{}))
}

// set updates an object regardless of its version.
func (o objects) set(t *testing.T, name string, value int) *unstructured.Unstructured {
	t.Helper()
	return must[*unstructured.Unstructured](t)(o.Update(t.Context(), o.object(name, value), metav1.UpdateOptions{}))
}

func (o objects) remove(t *testing.T, name string) {
	t.Helper()
	if err := o.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// fill creates the objects "0000", "0001", ... with value 0 and returns their names.
func (o objects) fill(t *testing.T, count int) []string {
	t.Helper()
	names := make([]string, count)
	var next atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := next.Add(1) - 1; int(i) < count; i = next.Add(1) - 1 {
				names[i] = fmt.Sprintf("%04d", i)
				if _, err := o.Create(t.Context(), o.object(names[i], 0), metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return names
}

func (o objects) list(t *testing.T, options metav1.ListOptions) *unstructured.UnstructuredList {
	t.Helper()
	return must[*unstructured.UnstructuredList](t)(o.List(t.Context(), options))
}

// values returns the names and values of the objects, like "0000=7".
func values(t *testing.T, list *unstructured.UnstructuredList) []string {
	t.Helper()
	var all []string
	for _, item := range list.Items {
		all = append(all, fmt.Sprintf("%s=%d", item.GetName(), valueOf(t, &item)))
	}
	return all
}

func same[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %d: %.2000v, want %d: %.2000v", what, len(got), fmt.Sprint(got), len(want), fmt.Sprint(want))
	}
}

func TestConflictingUpdateIsRejected(t *testing.T) {
	o := secrets(t)
	first := o.create(t, "a", 1)
	if _, err := o.Create(t.Context(), o.object("a", 2), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("second create: %v", err)
	}
	second := o.set(t, "a", 2)
	if version(second) <= version(first) {
		t.Fatalf("versions %s, %s", first.GetResourceVersion(), second.GetResourceVersion())
	}
	if _, err := o.Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("update of an old version: %v", err)
	}
	old, now := first.GetResourceVersion(), second.GetResourceVersion()
	err := o.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}})
	if !apierrors.IsConflict(err) {
		t.Fatalf("delete of an old version: %v", err)
	}
	if got := must[*unstructured.Unstructured](t)(o.Get(t.Context(), "a", metav1.GetOptions{})); valueOf(t, got) != 2 {
		t.Fatalf("got %v", got)
	}
	err = o.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &now}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("get after delete: %v", err)
	}
	if _, err := o.Update(t.Context(), o.object("a", 3), metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("update after delete: %v", err)
	}
}

// kube-apiserver repeats a patch until its transaction finds an unchanged object.
func TestConcurrentPatchesAreAllKept(t *testing.T) {
	o := configMaps(t)
	o.create(t, "a", 0)
	const writers, each = 4, 20
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				patch := fmt.Sprintf(`{"data": {"%d-%d": "x"}}`, w, i)
				_, err := o.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				// kube-apiserver gives up after five conflicts.
				for apierrors.IsConflict(err) {
					_, err = o.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := must[*unstructured.Unstructured](t)(o.Get(t.Context(), "a", metav1.GetOptions{}))
	if data, _, _ := unstructured.NestedMap(got.Object, "data"); len(data) != writers*each {
		t.Fatalf("%d of %d patches were kept", len(data), writers*each)
	}
}

func TestServerSideApplyTracksOwners(t *testing.T) {
	c := api.client.CoreV1().ConfigMaps(namespace(t))
	apply := func(manager string, force bool, data map[string]string) (*corev1.ConfigMap, error) {
		config := applycorev1.ConfigMap("a", strings.ToLower(t.Name())).WithData(data)
		return c.Apply(t.Context(), config, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	must[*corev1.ConfigMap](t)(apply("one", false, map[string]string{"x": "1", "y": "1"}))
	must[*corev1.ConfigMap](t)(apply("two", false, map[string]string{"z": "2"}))
	if _, err := apply("two", false, map[string]string{"x": "2", "z": "2"}); !apierrors.IsConflict(err) {
		t.Fatalf("apply to a field of another manager: %v", err)
	}
	must[*corev1.ConfigMap](t)(apply("two", true, map[string]string{"x": "2", "z": "2"}))
	// "one" no longer owns x, so only y is removed.
	got := must[*corev1.ConfigMap](t)(apply("one", false, map[string]string{}))
	if len(got.Data) != 2 || got.Data["x"] != "2" || got.Data["z"] != "2" {
		t.Fatalf("got %v", got.Data)
	}
	before := got.ResourceVersion
	if got = must[*corev1.ConfigMap](t)(apply("two", false, map[string]string{"x": "2", "z": "2"})); got.ResourceVersion != before {
		t.Fatalf("an apply that changes nothing wrote version %s after %s", got.ResourceVersion, before)
	}
}

func TestDeleteCollectionDeletesOnlyTheSelection(t *testing.T) {
	o := configMaps(t)
	var kept []string
	for i := range 200 {
		u := o.object(fmt.Sprintf("%04d", i), i)
		u.SetLabels(map[string]string{"half": strconv.Itoa(i % 2)})
		must[*unstructured.Unstructured](t)(o.Create(t.Context(), u, metav1.CreateOptions{}))
		if i%2 == 0 {
			kept = append(kept, fmt.Sprintf("%04d=%d", i, i))
		}
	}
	if err := o.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "half=1"}); err != nil {
		t.Fatal(err)
	}
	same(t, "objects", values(t, o.list(t, metav1.ListOptions{})), kept)
}

// No controller runs, so the test removes the namespace's finalizer.
func TestNamespaceIsDeletedAfterItsFinalizer(t *testing.T) {
	name := namespace(t)
	c := api.client.CoreV1().Namespaces()
	if err := c.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	space := must[*corev1.Namespace](t)(c.Get(t.Context(), name, metav1.GetOptions{}))
	if space.Status.Phase != corev1.NamespaceTerminating || space.DeletionTimestamp == nil {
		t.Fatalf("got %v", space.Status)
	}
	_, err := objectsOf(api, "ConfigMap", name).Create(t.Context(), objects{kind: "ConfigMap"}.object("a", 0), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("create in a namespace that ends: %v", err)
	}
	space.Spec.Finalizers = nil
	must[*corev1.Namespace](t)(c.Finalize(t.Context(), space, metav1.UpdateOptions{}))
	if _, err := c.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("get after the deletion: %v", err)
	}
}

// kube-apiserver takes addresses from a range, whose state it keeps in the key-value store.
func TestConcurrentServicesGetDifferentAddresses(t *testing.T) {
	space := namespace(t)
	var lock sync.Mutex
	addresses := map[string]string{}
	var all sync.WaitGroup
	const count = 40
	for w := range 4 {
		all.Go(func() {
			for i := w; i < count; i += 4 {
				service := &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)},
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
				}
				got, err := api.client.CoreV1().Services(space).Create(t.Context(), service, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					continue
				}
				lock.Lock()
				if other, used := addresses[got.Spec.ClusterIP]; used {
					t.Errorf("%s and %s have the address %s", other, got.Name, got.Spec.ClusterIP)
				}
				addresses[got.Spec.ClusterIP] = got.Name
				lock.Unlock()
			}
		})
	}
	all.Wait()
}

// kube-apiserver attaches the keys of Events to leases.
func TestEventsAreDeletedAfterTheirTTL(t *testing.T) {
	const ttl, count = 5 * time.Second, 50
	space := namespace(t)
	c := api.client.CoreV1().Events(space)
	for i := range count {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: space},
		}
		must[*corev1.Event](t)(c.Create(t.Context(), event, metav1.CreateOptions{}))
	}
	created := time.Now()
	counted := func() int {
		return len(must[*corev1.EventList](t)(c.List(t.Context(), metav1.ListOptions{})).Items)
	}
	if n := counted(); n == 0 && time.Since(created) < ttl/2 {
		t.Fatal("all events are gone early")
	}
	must[*corev1.ConfigMap](t)(api.client.CoreV1().ConfigMaps(space).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}, metav1.CreateOptions{}))
	eventually(t, time.Minute, func() error {
		if n := counted(); n > 0 {
			return fmt.Errorf("%d of %d events are left", n, count)
		}
		return nil
	})
	if elapsed := time.Since(created); elapsed < ttl-time.Second {
		t.Fatalf("the last event was deleted %v after its creation", elapsed)
	}
	must[*corev1.ConfigMap](t)(api.client.CoreV1().ConfigMaps(space).Get(t.Context(), "stays", metav1.GetOptions{}))
}

// definition creates a custom resource definition and waits until kube-apiserver serves it.
func definition(t *testing.T, plural, kind string) dynamic.NamespaceableResourceInterface {
	t.Helper()
	preserve := true
	c := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(api.config)).ApiextensionsV1().CustomResourceDefinitions()
	must[*apiextensionsv1.CustomResourceDefinition](t)(c.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".gallery.test"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "gallery.test", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: plural[:len(plural)-1], Kind: kind, ListKind: kind + "List",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
						Type: "object", XPreserveUnknownFields: &preserve,
						Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer"}},
					}},
				}},
			}},
		},
	}, metav1.CreateOptions{}))
	resource := api.dynamic.Resource(schema.GroupVersionResource{Group: "gallery.test", Version: "v1", Resource: plural})
	eventually(t, time.Minute, func() error {
		_, err := resource.List(t.Context(), metav1.ListOptions{})
		return err
	})
	return resource
}

func custom(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gallery.test/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func TestCustomObjectsAreDeletedWithTheirDefinition(t *testing.T) {
	resource := definition(t, "boats", "Boat").Namespace(namespace(t))
	w, err := resource.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 20 {
		boat := custom("Boat", fmt.Sprintf("b%02d", i), map[string]any{"size": int64(i)})
		must[*unstructured.Unstructured](t)(resource.Create(t.Context(), boat, metav1.CreateOptions{}))
	}
	bad := custom("Boat", "bad", map[string]any{"size": "large"})
	if _, err := resource.Create(t.Context(), bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Fatalf("create against the schema: %v", err)
	}
	for i := range 20 {
		event := next(t, w)
		if got := event.Object.(*unstructured.Unstructured).GetName(); got != fmt.Sprintf("b%02d", i) {
			t.Fatalf("event %d is of %s", i, got)
		}
	}
	keys := func() int64 {
		const prefix = "/registry/gallery.test/boats/"
		reply, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return must[*clientv3.GetResponse](t)(reply, err).Count
	}
	if n := keys(); n != 20 {
		t.Fatalf("%d keys", n)
	}
	c := must[*apiextensions.Clientset](t)(apiextensions.NewForConfig(api.config)).ApiextensionsV1().CustomResourceDefinitions()
	if err := c.Delete(t.Context(), "boats.gallery.test", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		if _, err := c.Get(t.Context(), "boats.gallery.test", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get of the definition: %v", err)
		}
		if n := keys(); n > 0 {
			return fmt.Errorf("%d keys are left", n)
		}
		return nil
	})
}

// The limit of a request to the key-value store is 1.5 MiB, and of one to kube-apiserver 3 MB.
func TestLargeObjectsAreRejected(t *testing.T) {
	resource := definition(t, "ships", "Ship").Namespace(namespace(t))
	cargo := func(bytes int) map[string]any { return map[string]any{"cargo": strings.Repeat("x", bytes)} }
	must[*unstructured.Unstructured](t)(resource.Create(t.Context(), custom("Ship", "large", cargo(1_400_000)), metav1.CreateOptions{}))
	_, err := resource.Create(t.Context(), custom("Ship", "huge", cargo(2_000_000)), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "request is too large") {
		t.Fatalf("create of 2 MB: %.300v", err)
	}
	got := must[*unstructured.Unstructured](t)(resource.Get(t.Context(), "large", metav1.GetOptions{}))
	if text, _, _ := unstructured.NestedString(got.Object, "spec", "cargo"); len(text) != 1_400_000 {
		t.Fatalf("read %d bytes", len(text))
	}
	if _, err := resource.Get(t.Context(), "huge", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("get of the rejected object: %.300v", err)
	}
}

// metric returns the values of a metric, by the line's labels.
func metric(t *testing.T, client *http.Client, url, name string) map[string]float64 {
	t.Helper()
	reply, err := client.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text := string(must[[]byte](t)(io.ReadAll(reply.Body)))
	all := map[string]float64{}
	for _, line := range regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		all[line[1]] = must[float64](t)(strconv.ParseFloat(line[2], 64))
	}
	return all
}

func TestMetricsCountObjectsAndSizes(t *testing.T) {
	space := namespace(t)
	objectsOf(api, "Secret", space).fill(t, 70)
	objectsOf(api, "ConfigMap", space).fill(t, 30)
	for label, kind := range map[string]string{`group="",resource="secrets"`: "Secret", `group="",resource="configmaps"`: "ConfigMap"} {
		want := len(objectsOf(api, kind, "").list(t, metav1.ListOptions{}).Items)
		eventually(t, 30*time.Second, func() error {
			if got, found := metric(t, api.http, api.url, "apiserver_resource_objects")[label]; !found || int(got) != want {
				return fmt.Errorf("%s: %v, want %d", label, got, want)
			}
			return nil
		})
	}
	sizes := metric(t, api.http, api.url, "apiserver_storage_size_bytes")
	for label, size := range sizes {
		if size <= 0 {
			t.Errorf("size of %s: %v", label, size)
		}
	}
	if len(sizes) == 0 {
		t.Error("no size")
	}
}

// Two candidates compete for a Lease. The leader stops without giving it up, like a killed process, and the other one
// takes over when it has expired.
func TestLeaderElectionHasOneLeader(t *testing.T) {
	const duration = 5 * time.Second
	space := namespace(t)
	var leaders atomic.Int32
	started := make(chan string, 4)
	ended := make(chan string, 4)
	candidate := func(ctx context.Context, name string) {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "leader", Namespace: space}, Client: api.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: duration, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if n := leaders.Add(1); n > 1 {
						t.Errorf("%d leaders", n)
					}
					started <- name
					<-ctx.Done()
					leaders.Add(-1)
				},
				OnStoppedLeading: func() { ended <- name },
			},
		})
		if err != nil {
			t.Error(err)
			return
		}
		elector.Run(ctx)
	}
	cancels := map[string]context.CancelFunc{}
	var all sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cancels[name] = cancel
		all.Go(func() { candidate(ctx, name) })
	}
	receive := func(names chan string) string {
		t.Helper()
		select {
		case name := <-names:
			return name
		case <-time.After(time.Minute):
			t.Fatal("no change of the leader")
			return ""
		}
	}
	lease := func() *coordinationv1.Lease {
		return must[*coordinationv1.Lease](t)(api.client.CoordinationV1().Leases(space).Get(t.Context(), "leader", metav1.GetOptions{}))
	}
	first := receive(started)
	// A leader that renews stays the leader.
	renewed := lease().Spec.RenewTime
	eventually(t, time.Minute, func() error {
		if now := lease().Spec.RenewTime; now.Sub(renewed.Time) < 2*duration {
			return fmt.Errorf("renewed at %v and %v", renewed, now)
		}
		return nil
	})
	if holder := *lease().Spec.HolderIdentity; holder != first || len(started) > 0 {
		t.Fatalf("%s holds the lease of %s", holder, first)
	}
	stopped := time.Now()
	cancels[first]()
	receive(ended)
	second := receive(started)
	if second == first {
		t.Fatalf("%s leads again", first)
	}
	if elapsed := time.Since(stopped); elapsed < duration-2*time.Second {
		t.Errorf("the other candidate led after %v", elapsed)
	}
	if got := lease(); *got.Spec.HolderIdentity != second || *got.Spec.LeaseTransitions != 1 {
		t.Errorf("lease: %v", got.Spec)
	}
	cancels[second]()
	all.Wait()
}
