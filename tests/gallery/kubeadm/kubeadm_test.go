package kubeadm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	etcdphase "k8s.io/kubernetes/cmd/kubeadm/app/phases/etcd"
	etcdutil "k8s.io/kubernetes/cmd/kubeadm/app/util/etcd"
)

// expectMembers compares kubeadm's list of the members with the first nodes.
func expectMembers(t *testing.T, got []etcdutil.Member, count int) {
	t.Helper()
	var want []etcdutil.Member
	for _, n := range nodes[:count] {
		want = append(want, etcdutil.Member{Name: n.name, PeerURL: n.peerURL()})
	}
	slices.SortFunc(got, func(a, b etcdutil.Member) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Equal(got, want) {
		t.Fatalf("members: %v, want %v", got, want)
	}
}

func listed(t *testing.T, count int) {
	t.Helper()
	members, err := fromCluster(t).ListMembers()
	ok(t, err)
	expectMembers(t, members, count)
}

// put writes a value through each member and reads it through all.
func put(t *testing.T, value string) {
	t.Helper()
	client := apiClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, endpoint := range client.Endpoints() {
		one := apiClient(t)
		one.SetEndpoints(endpoint)
		_, err := one.Put(ctx, endpoint, value)
		ok(t, err)
	}
	reply, err := client.Get(ctx, "https", clientv3.WithPrefix())
	ok(t, err)
	found := 0
	for _, kv := range reply.Kvs {
		if string(kv.Value) == value {
			found++
		}
	}
	if found != len(client.Endpoints()) {
		t.Fatalf("%d keys of %d have the value %s", found, len(client.Endpoints()), value)
	}
}

// kubeadm init
func TestInitStartsTheFirstMember(t *testing.T) {
	n := nodes[0]
	ok(t, n.writeManifest())
	n.start()
	healthy(t)
	ok(t, etcdphase.CheckLocalEtcdClusterStatus(pods, n.config.CertificatesDir))
	listed(t, 1)
	put(t, "init")
}

func TestLastMemberIsNotRemoved(t *testing.T) {
	ok(t, etcdphase.RemoveStackedEtcdMemberFromCluster(pods, nodes[0].config))
	listed(t, 1)
}

func TestClientsNeedCertificates(t *testing.T) {
	ok(t, func() error {
		tlsConfig := &tls.Config{InsecureSkipVerify: true}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{nodes[0].clientURL()}, TLS: tlsConfig})
		if err != nil {
			return err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if reply, err := client.Get(ctx, "https"); err == nil {
			return fmt.Errorf("read without a certificate: %v", reply)
		}
		return nil
	}())
	for _, url := range []string{nodes[0].clientURL(), nodes[0].peerURL()} {
		connection, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			// With TLS 1.3, the first read reports the missing certificate.
			connection.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, err = connection.Write([]byte("GET /version HTTP/1.1\r\nHost: x\r\n\r\n"))
			if err == nil {
				_, err = connection.Read(make([]byte, 1))
			}
			connection.Close()
		}
		if err == nil || os.IsTimeout(err) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestMetricsPortHasNoTLS(t *testing.T) {
	text, err := get(fmt.Sprintf("http://%s:%d/metrics", nodes[0].local, constants.EtcdMetricsPort))
	ok(t, err)
	if !strings.Contains(text, "\netcd_server_has_leader 1\n") {
		t.Error("no metric etcd_server_has_leader")
	}
	text, err = get(fmt.Sprintf("http://%s:%d/health", nodes[0].local, constants.EtcdMetricsPort))
	ok(t, err)
	if !strings.Contains(text, `"health":"true"`) {
		t.Errorf("health: %s", text)
	}
}

// join runs the phase of `kubeadm join` that adds a member, while the test starts its server.
func join(t *testing.T, n *node) {
	t.Helper()
	ok(t, etcdphase.CheckLocalEtcdClusterStatus(pods, n.config.CertificatesDir))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.startWhenWritten(ctx)
	}()
	err := etcdphase.CreateStackedEtcdStaticPodManifestFile(pods, n.manifests(), "", n.name, &n.config.ClusterConfiguration,
		&n.config.LocalAPIEndpoint, false, n.config.CertificatesDir)
	if err != nil {
		cancel()
	}
	<-done
	cancel()
	ok(t, err)
	healthy(t)
	voters(t)
}

// voters fails the test if a member is a learner.
func voters(t *testing.T) {
	t.Helper()
	reply, err := apiClient(t).MemberList(t.Context())
	ok(t, err)
	if i := slices.IndexFunc(reply.Members, func(m *etcdserverpb.Member) bool { return m.IsLearner }); i >= 0 {
		t.Fatalf("learner: %v", reply.Members[i])
	}
}

func TestJoinAddsTheSecondMember(t *testing.T) {
	join(t, nodes[1])
	listed(t, 2)
	put(t, "second")
}

func TestJoinAddsTheThirdMember(t *testing.T) {
	join(t, nodes[2])
	listed(t, 3)
	put(t, "third")
}

func TestAddingMemberAgainChangesNothing(t *testing.T) {
	client := fromCluster(t)
	for _, add := range []func(string, string) ([]etcdutil.Member, error){client.AddMemberAsLearner, client.AddMember} {
		members, err := add(nodes[2].name, nodes[2].peerURL())
		ok(t, err)
		expectMembers(t, members, 3)
	}
	listed(t, 3)
}

func TestPromotingVoterChangesNothing(t *testing.T) {
	client := fromCluster(t)
	for _, n := range nodes {
		id, err := client.GetMemberID(n.peerURL())
		ok(t, err)
		ok(t, client.MemberPromote(id))
	}
	listed(t, 3)
	voters(t)
}

func TestMemberIDsAreThoseOfTheMembers(t *testing.T) {
	client := fromCluster(t)
	ids := map[uint64]string{}
	reply, err := apiClient(t).MemberList(t.Context())
	ok(t, err)
	for _, m := range reply.Members {
		ids[m.ID] = m.Name
	}
	for _, n := range nodes {
		id, err := client.GetMemberID(n.peerURL())
		ok(t, err)
		if ids[id] != n.name {
			t.Errorf("%x is %s, not %s", id, ids[id], n.name)
		}
		status, err := apiClient(t).Status(t.Context(), n.clientURL())
		ok(t, err)
		if status.Header.MemberId != id {
			t.Errorf("%s has the id %x, not %x", n.name, status.Header.MemberId, id)
		}
	}
	if _, err := client.GetMemberID("https://127.0.0.99:2380"); !errors.Is(err, etcdutil.ErrNoMemberIDForPeerURL) {
		t.Errorf("id of an unknown member: %v", err)
	}
}

func TestSyncFindsAllMembers(t *testing.T) {
	n := nodes[1]
	client, err := etcdutil.New([]string{fmt.Sprintf("https://%s:2379", n.local)}, n.certificate(constants.EtcdCACertName),
		n.certificate(constants.EtcdHealthcheckClientCertName), n.certificate(constants.EtcdHealthcheckClientKeyName))
	ok(t, err)
	ok(t, client.Sync())
	slices.Sort(client.Endpoints)
	if want := []string{nodes[0].clientURL(), nodes[1].clientURL(), nodes[2].clientURL()}; !slices.Equal(client.Endpoints, want) {
		t.Fatalf("endpoints: %v", client.Endpoints)
	}
}

func TestClusterIsAvailableWithoutOneMember(t *testing.T) {
	client := fromCluster(t)
	nodes[0].kill()
	available, err := client.WaitForClusterAvailable(8, time.Second)
	ok(t, err)
	if !available {
		t.Fatal("not available")
	}
	ok(t, client.CheckClusterHealth())
	if err := nodes[0].liveness(); err == nil {
		t.Error("the killed member is alive")
	}
	put(t, "without one")
	nodes[0].start()
	healthy(t)
}

// Without a majority, a member is alive, but not ready.
func TestClusterIsNotAvailableWithoutMajority(t *testing.T) {
	client := fromCluster(t)
	nodes[0].kill()
	nodes[1].kill()
	eventually(t, time.Minute, func() error {
		if nodes[2].readiness() == nil {
			return errors.New("the member is ready")
		}
		return nil
	})
	ok(t, nodes[2].liveness())
	if available, err := client.WaitForClusterAvailable(1, time.Second); available || err == nil {
		t.Fatalf("available: %v, %v", available, err)
	}
	if err := client.CheckClusterHealth(); err == nil {
		t.Fatal("healthy")
	}
	nodes[0].start()
	nodes[1].start()
	healthy(t)
	available, err := client.WaitForClusterAvailable(8, time.Second)
	ok(t, err)
	if !available {
		t.Fatal("not available after the restart")
	}
	put(t, "majority again")
}

// The manifests of `kubeadm upgrade` have only the node itself in --initial-cluster.
func TestUpgradeKeepsMembersAndData(t *testing.T) {
	put(t, "before the upgrade")
	for _, n := range nodes {
		ok(t, n.writeManifest())
		n.kill()
		n.start()
		healthy(t)
		available, err := fromCluster(t).WaitForClusterAvailable(8, time.Second)
		ok(t, err)
		if !available {
			t.Fatal("not available")
		}
	}
	listed(t, 3)
	reply, err := apiClient(t).Get(t.Context(), "https", clientv3.WithPrefix())
	ok(t, err)
	if len(reply.Kvs) != 6 {
		t.Fatalf("%d keys", len(reply.Kvs))
	}
	for _, kv := range reply.Kvs {
		if string(kv.Value) != "before the upgrade" {
			t.Errorf("got %v", kv)
		}
	}
	put(t, "after the upgrade")
}

// A member that never starts, as after a failed `kubeadm join`.
func TestMemberThatNeverStartedIsRemoved(t *testing.T) {
	const peer = "https://127.0.0.14:2380"
	client := fromCluster(t)
	members, err := client.AddMemberAsLearner("node3", peer)
	ok(t, err)
	if len(members) != 4 {
		t.Fatalf("members: %v", members)
	}
	if members, err = fromCluster(t).ListMembers(); err != nil || !slices.Contains(members, etcdutil.Member{PeerURL: peer}) {
		t.Fatalf("members: %v, %v", members, err)
	}
	id, err := client.GetMemberID(peer)
	ok(t, err)
	if err := client.MemberPromote(id); err == nil {
		t.Fatal("a member that never started was promoted")
	}
	put(t, "with a missing learner")
	members, err = client.RemoveMember(id)
	ok(t, err)
	expectMembers(t, members, 3)
	// kubeadm accepts that the member is gone.
	members, err = client.RemoveMember(id)
	ok(t, err)
	expectMembers(t, members, 3)
	listed(t, 3)
}

// kubeadm reset
func TestResetRemovesMember(t *testing.T) {
	n := nodes[2]
	ok(t, etcdphase.RemoveStackedEtcdMemberFromCluster(pods, n.config))
	n.delete()
	healthy(t)
	listed(t, 2)
	put(t, "after the reset")
	// Does nothing if the member is gone.
	ok(t, etcdphase.RemoveStackedEtcdMemberFromCluster(pods, n.config))
	listed(t, 2)
}

func TestRemovedNodeJoinsAgain(t *testing.T) {
	join(t, nodes[2])
	listed(t, 3)
	put(t, "joined again")
}

// A removed member that keeps its data cannot come back.
func TestRemovedMemberStaysOut(t *testing.T) {
	n := nodes[2]
	ok(t, etcdphase.RemoveStackedEtcdMemberFromCluster(pods, n.config))
	n.kill()
	n.start()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if n.readiness() == nil {
			t.Fatal("the removed member is ready")
		}
	}
	n.delete()
	listed(t, 2)
	put(t, "without the removed member")
}
