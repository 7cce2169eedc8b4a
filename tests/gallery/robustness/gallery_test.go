package robustness

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

// The failpoints that work from outside, by the number of members of the cluster.
var galleryFailpoints = map[int][]namedFailpoint{
	1: {{"Kill", failpoint.KillFailpoint}, {"Pause", pause{leader: true}}},
	3: {
		{"Kill", failpoint.KillFailpoint},
		{"BlackholePeerNetwork", failpoint.BlackholePeerNetwork},
		{"PauseLeader", pause{leader: true}},
		{"DelayPeerNetwork", failpoint.DelayPeerNetwork},
		{"BlackholeUntilSnapshot", blackholeUntilSnapshot{}},
		{"MemberReplace", failpoint.MemberReplace},
		{"DropPeerNetwork", failpoint.DropPeerNetwork},
		{"PauseFollower", pause{leader: false}},
	},
}

type namedFailpoint struct {
	name string
	failpoint.Failpoint
}

// Inject waits at the end until all members are healthy, which the suite then expects. A member of Bowline without a
// leader reports NOT_SERVING, but one of etcd SERVING.
func (f namedFailpoint) Inject(ctx context.Context, t *testing.T, lg *zap.Logger, c *e2e.EtcdProcessCluster, baseTime time.Time, ids identity.Provider) ([]report.ClientReport, error) {
	reports, err := f.Failpoint.Inject(ctx, t, lg, c, baseTime, ids)
	if err != nil {
		return nil, err
	}
	for _, member := range c.Procs {
		client, err := clientv3.New(clientv3.Config{Endpoints: member.EndpointsGRPC(), Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		health := healthpb.NewHealthClient(client.ActiveConnection())
		for {
			reply, err := health.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
			if err != nil {
				return nil, err
			}
			if reply.Status == healthpb.HealthCheckResponse_SERVING {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return reports, nil
}

// TestGallery runs GALLERY_ROUNDS rounds, from round GALLERY_FIRST. Each round has the suite's exploratory scenarios
// (four kinds of traffic, with one and with three members) and its regression scenarios without gofail. The failpoints
// of the exploratory scenarios rotate: after some rounds, each traffic has run with each failpoint.
func TestGallery(t *testing.T) {
	first, err := strconv.Atoi(os.Getenv("GALLERY_FIRST"))
	require.NoError(t, err)
	rounds, err := strconv.Atoi(os.Getenv("GALLERY_ROUNDS"))
	require.NoError(t, err)
	// A client waits 1 s before it connects again. With the suite's default of 1 s, some runs end before that.
	WaitAfterFailpoint = 3 * time.Second
	for round := first; round < first+rounds; round++ {
		// The suite draws the flags of the servers when it makes the list.
		count := map[int]int{1: round * 4, 3: round * 4}
		for _, s := range scenarios.Exploratory(t) {
			all := galleryFailpoints[s.Cluster.ClusterSize]
			run := count[s.Cluster.ClusterSize]
			count[s.Cluster.ClusterSize]++
			// Shift by one when all pairs of this distance have had their turn.
			galleryRun(t, round, s, all[(run+run/max(4, len(all)))%len(all)])
		}
		for _, s := range scenarios.Regression(t) {
			f := namedFailpoint{s.Failpoint.Name(), s.Failpoint}
			if f.Failpoint == failpoint.BlackholeUntilSnapshot {
				f = namedFailpoint{"BlackholeUntilSnapshot", blackholeUntilSnapshot{}}
			}
			if !s.Cluster.GoFailEnabled {
				galleryRun(t, round, s, f)
			}
		}
	}
}

func galleryRun(t *testing.T, round int, s scenarios.TestScenario, f namedFailpoint) {
	t.Run(fmt.Sprintf("%d/%s/%s", round, s.Name, f.name), func(t *testing.T) {
		lg := zaptest.NewLogger(t)
		s.Failpoint = f
		s.Cluster.Logger = lg
		s.Cluster.GoFailEnabled = false
		if (f.Failpoint == blackholeUntilSnapshot{}) {
			// The suite may have drawn flags with which etcd sends no snapshot.
			s.Cluster.ServerConfig.SnapshotCount = min(s.Cluster.ServerConfig.SnapshotCount, 100)
			s.Cluster.ServerConfig.SnapshotCatchUpEntries = min(s.Cluster.ServerConfig.SnapshotCatchUpEntries, 100)
		}
		s.Cluster.BasePort = freePorts(t, s.Cluster.ClusterSize)
		c, err := e2e.NewEtcdProcessCluster(t.Context(), t, e2e.WithConfig(&s.Cluster))
		require.NoError(t, err)
		defer forcestopCluster(c)
		drainProxies(c)
		require.NoError(t, failpoint.Validate(c, f, s.Profile))
		galleryJudge(t, lg, s, c)
	})
}

// galleryJudge is the suite's testRobustness with other persisted requests.
func galleryJudge(t *testing.T, lg *zap.Logger, s scenarios.TestScenario, c *e2e.EtcdProcessCluster) {
	unique := s.Traffic.ExpectUniqueRevision()
	r, err := report.NewTestReport(lg, testResultsDirectory(t), report.ServerDataPaths(c), &report.TrafficDetail{ExpectUniqueRevision: unique})
	require.NoError(t, err)
	panicked := true
	defer func() {
		if err := r.Finalize(t.Failed(), panicked); err != nil {
			t.Error(err)
		}
	}()
	reports := runScenario(t.Context(), t, s, lg, c)
	r.SetClientReports(reports)
	if err := r.SaveEtcdData(); err != nil {
		t.Error(err)
	}

	persisted, err := rebuild(reports)
	if err != nil {
		t.Errorf("cannot rebuild the requests: %v", err)
	}
	if os.Getenv("GALLERY_KIND") == "etcd" {
		rebuilt, rebuildError := persisted, err
		persisted, err = report.PersistedRequestsCluster(lg, c)
		require.NoError(t, err)
		if rebuildError == nil {
			if diff := cmp.Diff(model.NewReplay(persisted).Events, model.NewReplay(rebuilt).Events); diff != "" {
				t.Errorf("the rebuilt requests differ from etcd's log (-log +rebuilt): %s", diff)
			}
		}
	}
	result := validate.ValidateAndReturnVisualize(lg, validate.Config{ExpectRevisionUnique: unique}, reports, persisted, 5*time.Minute)
	if err := result.Error(); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		r.SetVisualizer(result.Linearization.Visualize)
	}
	panicked = false
}

func rebuild(reports []report.ClientReport) ([]model.EtcdRequest, error) {
	var operations []porcupine.Operation
	var watches []model.WatchOperation
	for _, r := range reports {
		operations = append(operations, r.KeyValue...)
		watches = append(watches, r.Watch...)
	}
	return model.RebuildRequests(operations, watches)
}

// drainProxies receives the errors of the members' proxies, for example of connections to a killed member. A proxy
// accepts no more connections when 16 errors are unread. etcd connects less often than that.
func drainProxies(c *e2e.EtcdProcessCluster) {
	for _, member := range c.Procs {
		if proxy := member.PeerProxy(); proxy != nil {
			go func() {
				for {
					select {
					case <-proxy.Error():
					case <-proxy.Done():
						return
					}
				}
			}()
		}
	}
}

// freePorts returns the first of five free ports for each member.
func freePorts(t *testing.T, members int) int {
	for {
		first, free := 20000+20*rand.Intn(600), true
		for port := first; port < first+5*members && free; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
			if free = err == nil; free {
				require.NoError(t, l.Close())
			}
		}
		if free {
			return first
		}
	}
}

// pause stops a process with SIGSTOP for up to 3 s. It replaces the suite's sleeps in a server's code. A paused leader
// loses its office without noticing.
type pause struct{ leader bool }

func (p pause) Inject(ctx context.Context, t *testing.T, lg *zap.Logger, c *e2e.EtcdProcessCluster, _ time.Time, _ identity.Provider) ([]report.ClientReport, error) {
	member, err := p.pick(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := member.Pause(); err != nil {
		return nil, err
	}
	duration := time.Second + time.Duration(rand.Int63n(int64(2*time.Second)))
	time.Sleep(duration)
	lg.Info("Paused member", zap.String("member", member.Config().Name), zap.Duration("duration", duration))
	return nil, member.Resume()
}

func (p pause) pick(ctx context.Context, c *e2e.EtcdProcessCluster) (e2e.EtcdProcess, error) {
	for ctx.Err() == nil {
		for _, i := range rand.Perm(len(c.Procs)) {
			endpoints := c.Procs[i].EndpointsGRPC()
			client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
			if err != nil {
				return nil, err
			}
			status, err := client.Status(ctx, endpoints[0])
			client.Close()
			if err == nil && status.Leader != 0 && p.leader == (status.Leader == status.Header.MemberId) {
				return c.Procs[i], nil
			}
		}
	}
	return nil, ctx.Err()
}

func (p pause) Name() string { return "Pause" }

func (p pause) Available(config e2e.EtcdProcessClusterConfig, _ e2e.EtcdProcess, _ traffic.Profile) bool {
	return p.leader || config.ClusterSize > 1
}

// blackholeUntilSnapshot cuts a member off until the others can no longer send it the log. The suite's failpoint of this
// name waits for a number of revisions that --snapshot-count gives. Bowline drops parts of 16 MiB from the log when it
// has written a snapshot, at the earliest after 32 MiB. So this one fills the log with transactions that change nothing.
type blackholeUntilSnapshot struct{}

func (blackholeUntilSnapshot) Inject(ctx context.Context, t *testing.T, lg *zap.Logger, c *e2e.EtcdProcessCluster, _ time.Time, _ identity.Provider) ([]report.ClientReport, error) {
	i := rand.Intn(len(c.Procs))
	proxy := c.Procs[i].PeerProxy()
	lg.Info("Blackholing member", zap.String("member", c.Procs[i].Config().Name))
	proxy.BlackholeTx()
	proxy.BlackholeRx()
	defer proxy.UnblackholeTx()
	defer proxy.UnblackholeRx()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Procs[(i+1)%len(c.Procs)].EndpointsGRPC(), Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	never := clientv3.Compare(clientv3.Version("never"), "=", 1)
	for written, value := 0, strings.Repeat("x", 1<<20); written < 64<<20 && ctx.Err() == nil; {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		if _, err := client.Txn(limited).If(never).Then(clientv3.OpPut("never", value)).Commit(); err == nil {
			written += len(value)
		}
		cancel()
	}
	return nil, ctx.Err()
}

func (blackholeUntilSnapshot) Name() string { return "BlackholeUntilSnapshot" }

func (blackholeUntilSnapshot) Available(config e2e.EtcdProcessClusterConfig, member e2e.EtcdProcess, _ traffic.Profile) bool {
	return config.ClusterSize > 1 && member.PeerProxy() != nil
}
