// Package testserver replaces k8s.io/apiserver/pkg/storage/etcd3/testserver in tests/gallery/apiserver: it starts the
// program GALLERY_SERVER instead of an embedded etcd.
package testserver

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// NewTestConfig returns a configuration with free ports. RunEtcd uses its URLs, directory and progress interval.
func NewTestConfig(t testing.TB) *embed.Config {
	cfg := embed.NewConfig()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	one, other := listen(), listen()
	one.Close()
	other.Close()
	client := url.URL{Scheme: "http", Host: one.Addr().String()}
	peer := url.URL{Scheme: "http", Host: other.Addr().String()}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.Dir = t.TempDir()
	return cfg
}

// RunEtcd starts the server with the configuration, or with a new one, and returns a client. The server ends with the
// test.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg == nil {
		cfg = NewTestConfig(t)
	}
	client, peer := cfg.ListenClientUrls[0].String(), cfg.ListenPeerUrls[0].String()
	server := exec.Command(os.Getenv("GALLERY_SERVER"),
		"--name=default", "--unsafe-no-fsync", "--data-dir="+filepath.Join(cfg.Dir, "data"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--watch-progress-notify-interval="+cfg.WatchProgressNotifyInterval.String())
	log, err := os.Create(filepath.Join(cfg.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("log of the server:\n%s", text)
		}
	})
	// Like an embedded etcd, returns only once the server has a leader.
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if answer, err := http.Get(client + "/health"); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the server is not healthy")
		}
	}
	c, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{client},
		DialTimeout: 10 * time.Second,
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
	})
	if err != nil {
		t.Fatal(err)
	}
	recorder := storagetesting.NewKubernetesRecorder(c.Kubernetes)
	c.KV = storagetesting.NewKVRecorder(c.KV, recorder)
	c.Kubernetes = recorder
	return c
}
