package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

func TestPagesShowOneRevision(t *testing.T)             { pagesShowOneRevision(t, secrets(t)) }
func TestPagesFromTheCacheShowOneRevision(t *testing.T) { pagesShowOneRevision(t, configMaps(t)) }

// Lists 1,000 objects in pages of 90, with changes between the pages.
func pagesShowOneRevision(t *testing.T, o objects) {
	names := o.fill(t, 1000)
	var want, got []string
	for _, name := range names {
		want = append(want, name+"=0")
	}
	options := metav1.ListOptions{Limit: 90}
	revision := ""
	for page := 0; ; page++ {
		list := o.list(t, options)
		got = append(got, values(t, list)...)
		if revision == "" {
			revision = list.GetResourceVersion()
		}
		if list.GetResourceVersion() != revision {
			t.Fatalf("page %d is of revision %s, not %s", page, list.GetResourceVersion(), revision)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
		o.set(t, names[990-page], 1)
		o.remove(t, names[950-page])
		o.create(t, fmt.Sprintf("%s-new", names[970-page]), 1)
	}
	same(t, "objects of all pages", got, want)
	if n := len(values(t, o.list(t, metav1.ListOptions{}))); n != 1000 {
		t.Fatalf("%d objects at last", n)
	}
}

// compactNow compacts the key-value store at its newest revision.
func compactNow(t *testing.T) {
	t.Helper()
	revision := must[*clientv3.GetResponse](t)(etcd.Get(t.Context(), "any")).Header.Revision
	// The compactor of another test may be ahead.
	if _, err := etcd.Compact(t.Context(), revision, clientv3.WithCompactPhysical()); err != nil && err != rpctypes.ErrCompacted {
		t.Fatal(err)
	}
}

// The error for an expired continue token contains a new token, which continues at the newest revision.
func TestExpiredTokenIsReplaced(t *testing.T) {
	o := secrets(t)
	names := o.fill(t, 100)
	first := o.list(t, metav1.ListOptions{Limit: 40})
	o.set(t, names[50], 5)
	compactNow(t)
	_, err := o.List(t.Context(), metav1.ListOptions{Limit: 40, Continue: first.GetContinue()})
	status, is := err.(apierrors.APIStatus)
	if !apierrors.IsResourceExpired(err) || !is || status.Status().Code != 410 {
		t.Fatalf("list with an expired token: %v", err)
	}
	token := status.Status().ListMeta.Continue
	if token == "" {
		t.Fatal("no new token")
	}
	rest := o.list(t, metav1.ListOptions{Continue: token})
	var want []string
	for i, name := range names[40:] {
		want = append(want, fmt.Sprintf("%s=%d", name, map[bool]int{true: 5}[i == 10]))
	}
	same(t, "rest", values(t, rest), want)
}

// client-go's pager lists everything again without pages.
func TestPagerSurvivesExpiredToken(t *testing.T) {
	o := secrets(t)
	names := o.fill(t, 100)
	pages := 0
	p := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if pages++; pages == 2 {
			o.set(t, names[0], 1)
			compactNow(t)
		}
		return o.List(ctx, options)
	})
	p.PageSize = 30
	result, _, err := p.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{names[0] + "=1"}
	for _, name := range names[1:] {
		want = append(want, name+"=0")
	}
	same(t, "objects", values(t, result.(*unstructured.UnstructuredList)), want)
	// The first page, the expired one, and the whole list.
	if pages != 3 {
		t.Fatalf("%d requests", pages)
	}
}

func TestListAtExactRevision(t *testing.T)             { listAtExactRevision(t, secrets(t)) }
func TestListFromTheCacheAtExactRevision(t *testing.T) { listAtExactRevision(t, configMaps(t)) }

func listAtExactRevision(t *testing.T, o objects) {
	names := o.fill(t, 50)
	history := map[string][]string{}
	var revisions []string
	for i := range 50 {
		var written *unstructured.Unstructured
		switch i % 3 {
		case 0:
			written = o.set(t, names[i], 1)
		case 1:
			written = o.create(t, fmt.Sprintf("%s-new", names[i]), 1)
		default:
			o.remove(t, names[i])
			written = o.set(t, names[0], i)
		}
		revision := written.GetResourceVersion()
		revisions = append(revisions, revision)
		history[revision] = values(t, o.list(t, metav1.ListOptions{}))
	}
	slices.Reverse(revisions)
	for _, revision := range revisions {
		list := o.list(t, metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		if list.GetResourceVersion() != revision {
			t.Fatalf("list of revision %s instead of %s", list.GetResourceVersion(), revision)
		}
		same(t, "objects at "+revision, values(t, list), history[revision])
	}
}

func TestListOfFutureRevisionIsRejected(t *testing.T) {
	for _, o := range []objects{secrets(t), objectsOf(api, "ConfigMap", "default")} {
		o.create(t, strings.ToLower(t.Name()), 0)
		// Without client-go, which repeats the request ten times.
		url := fmt.Sprintf("%s/api/v1/%ss?resourceVersion=1000000000&resourceVersionMatch=NotOlderThan", api.url, strings.ToLower(o.kind))
		err := get(api.http, url)
		if err == nil || !strings.Contains(err.Error(), string(metav1.CauseTypeResourceVersionTooLarge)) {
			t.Fatalf("%s: %v", o.kind, err)
		}
	}
}

// A kube-apiserver whose store has no RangeStream uses Range instead.
func TestListsUseRangeStream(t *testing.T) {
	o := secrets(t)
	o.fill(t, 100)
	streams := func() (count float64) {
		for _, m := range members {
			for labels, n := range metric(t, http.DefaultClient, m.client, "grpc_server_handled_total") {
				if strings.Contains(labels, `grpc_code="OK"`) && strings.Contains(labels, `grpc_method="RangeStream"`) {
					count += n
				}
			}
		}
		return count
	}
	before := streams()
	if n := len(values(t, o.list(t, metav1.ListOptions{}))); n != 100 {
		t.Fatalf("%d objects", n)
	}
	if after := streams(); after <= before {
		t.Fatalf("%v streams before, %v after the list", before, after)
	}
}

// A list without a revision shows all earlier writes, also those through another kube-apiserver. The cache waits for
// progress notifications of the key-value store.
func TestListShowsWritesThroughAnotherAPIServer(t *testing.T) {
	o := configMaps(t)
	second := newAPIServer(t.TempDir(), "second", etcd.Endpoints())
	second.start("--etcd-compaction-interval=0")
	t.Cleanup(second.kill)
	eventually(t, 3*time.Minute, second.ready)
	other := objectsOf(second, "ConfigMap", strings.ToLower(t.Name()))
	var want []string
	for i := range 100 {
		writer, reader := o, other
		if i%2 == 1 {
			writer, reader = other, o
		}
		writer.create(t, fmt.Sprintf("%04d", i), i)
		want = append(want, fmt.Sprintf("%04d=%d", i, i))
		same(t, "objects", values(t, reader.list(t, metav1.ListOptions{})), want)
	}
}
