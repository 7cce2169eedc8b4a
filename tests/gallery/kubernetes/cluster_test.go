// Package kubernetes runs kube-apiserver with three servers of the key-value store and checks both with client-go.
//
// The tests share one kube-apiserver. It keeps ConfigMaps in its watch cache, which answers lists and watches from
// memory. Secrets bypass the cache: the key-value store answers each of their lists and watches.
package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const token = "gallery"

// Set by TestMain.
var (
	members []*member
	etcd    *clientv3.Client
	api     *apiserver
)

func TestMain(m *testing.M) {
	log.SetFlags(0)
	code := 1
	defer func() { os.Exit(code) }()
	directory := os.Getenv("GALLERY_WORK")
	var cluster, endpoints []string
	for i := range 3 {
		c := &member{name: fmt.Sprintf("m%d", i), client: "http://" + freeAddress(), peer: "http://" + freeAddress()}
		members = append(members, c)
		cluster = append(cluster, c.name+"="+c.peer)
		endpoints = append(endpoints, c.client)
	}
	for _, c := range members {
		c.process = process{log: filepath.Join(directory, c.name+".log"), command: []string{
			os.Getenv("GALLERY_SERVER"), "--name=" + c.name, "--data-dir=" + filepath.Join(directory, c.name),
			"--listen-client-urls=" + c.client, "--advertise-client-urls=" + c.client,
			"--listen-peer-urls=" + c.peer, "--initial-advertise-peer-urls=" + c.peer,
			// kubeadm sets this interval.
			"--initial-cluster=" + strings.Join(cluster, ","), "--watch-progress-notify-interval=5s",
		}}
		c.start()
		defer c.kill()
	}
	var err error
	etcd, err = clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	check(err)
	api = newAPIServer(directory, "api", endpoints)
	api.start("--etcd-compaction-interval=0")
	defer api.kill()
	check(poll(3*time.Minute, api.ready))
	code = m.Run()
}

// check ends the program with an error. Only for TestMain and functions without a test.
func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// poll calls a function until it returns nil, or returns its last error when the time is over.
func poll(limit time.Duration, f func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		if err := f(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// eventually fails the test unless a function returns nil within the time.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	if err := poll(limit, f); err != nil {
		t.Fatalf("after %v: %v", limit, err)
	}
}

func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer l.Close()
	return l.Addr().String()
}

// process is a program that can be killed and started again.
type process struct {
	command []string
	log     string
	running *exec.Cmd
}

func (p *process) start(flags ...string) {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	defer out.Close()
	p.running = exec.Command(p.command[0], append(p.command[1:len(p.command):len(p.command)], flags...)...)
	p.running.Stdout, p.running.Stderr = out, out
	check(p.running.Start())
}

// kill ends the process with SIGKILL. Does nothing if it is not running.
func (p *process) kill() {
	if p.running != nil {
		p.running.Process.Kill()
		p.running.Wait()
		p.running = nil
	}
}

// member is a server of the key-value store.
type member struct {
	name, client, peer string
	process
}

func (m *member) healthy() error { return get(http.DefaultClient, m.client+"/health") }

// get returns an error unless the status of the reply is 200.
func get(client *http.Client, url string) error {
	reply, err := client.Get(url)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, reply.Status, text)
	}
	return err
}

// leader returns the leader of the running members.
func leader() (*member, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, m := range members {
		status, err := etcd.Status(ctx, m.client)
		if err == nil && status.Leader == status.Header.MemberId {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no member is the leader")
}

// apiserver is a kube-apiserver.
type apiserver struct {
	process
	url     string
	config  *rest.Config
	http    *http.Client
	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
}

func newAPIServer(directory, name string, endpoints []string) *apiserver {
	certificates := filepath.Join(directory, name)
	check(os.MkdirAll(certificates, 0o700))
	tokens := filepath.Join(certificates, "tokens")
	check(os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600))
	// The key of service accounts. All instances of kube-apiserver use the same one.
	key := filepath.Join(directory, "service-account.key")
	if _, err := os.Stat(key); err != nil {
		private, err := rsa.GenerateKey(rand.Reader, 2048)
		check(err)
		block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)}
		check(os.WriteFile(key, pem.EncodeToMemory(block), 0o600))
	}
	address := freeAddress()
	_, port, err := net.SplitHostPort(address)
	check(err)
	a := &apiserver{url: "https://" + address, process: process{
		log: filepath.Join(directory, name+".log"),
		command: []string{
			os.Getenv("GALLERY_APISERVER"), "--bind-address=127.0.0.1", "--secure-port=" + port,
			// An address for documentation: kube-apiserver must not advertise a loopback address.
			"--advertise-address=192.0.2.1", "--cert-dir=" + certificates, "--token-auth-file=" + tokens,
			"--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key,
			"--service-account-signing-key-file=" + key, "--etcd-servers=" + strings.Join(endpoints, ","),
			"--watch-cache-sizes=secrets#0", "--event-ttl=5s", "--etcd-count-metric-poll-period=1s",
		},
	}}
	a.config = &rest.Config{
		Host: a.url, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	a.http, err = rest.HTTPClientFor(a.config)
	check(err)
	a.client, err = kubernetes.NewForConfig(a.config)
	check(err)
	a.dynamic, err = dynamic.NewForConfig(a.config)
	check(err)
	return a
}

// ready returns an error unless kube-apiserver is ready.
func (a *apiserver) ready() error { return get(a.http, a.url+"/readyz?verbose") }

// restart kills kube-apiserver and starts it with other flags.
func (a *apiserver) restart(t *testing.T, flags ...string) {
	t.Helper()
	a.kill()
	a.start(flags...)
	eventually(t, 3*time.Minute, a.ready)
}
