// Package kubeadm runs kubeadm's code for etcd with servers that start from its manifests.
package kubeadm

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/certs"
	etcdphase "k8s.io/kubernetes/cmd/kubeadm/app/phases/etcd"
	configutil "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	etcdutil "k8s.io/kubernetes/cmd/kubeadm/app/util/etcd"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/staticpod"
)

// The nodes of the control plane. The tests run in order, each with the cluster of the one before.
var nodes []*node

// pods is a Kubernetes API that has only the pods of the servers: kubeadm reads their endpoints from it.
var pods = fake.NewClientset()

func TestMain(m *testing.M) {
	log.SetFlags(0)
	code := 1
	defer func() { os.Exit(code) }()
	// The limit for a member that is down. kubeadm's default is two minutes.
	timeouts := kubeadmapi.GetActiveTimeouts().DeepCopy()
	timeouts.EtcdAPICall.Duration = 10 * time.Second
	kubeadmapi.SetActiveTimeouts(timeouts)
	for i := range 3 {
		n := newNode(i)
		nodes = append(nodes, n)
		defer n.kill()
	}
	code = m.Run()
}

// check ends the program with an error. Only for TestMain and functions without a test.
func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test unless a function returns nil within the time.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", limit, err)
		}
	}
}

// node is a node with a server of the key-value store. Each node has two addresses of the loopback interface, because
// kubeadm gives all nodes the same ports: `address` is the node's, and `local` stands for its 127.0.0.1.
type node struct {
	name, address, local string
	directory            string
	config               *kubeadmapi.InitConfiguration
	running              *exec.Cmd
}

func newNode(i int) *node {
	n := &node{
		name: fmt.Sprintf("node%d", i), address: fmt.Sprintf("127.0.0.%d", 11+i), local: fmt.Sprintf("127.0.0.%d", 21+i),
	}
	n.directory = filepath.Join(os.Getenv("GALLERY_WORK"), n.name)
	config, err := configutil.DefaultedStaticInitConfiguration()
	check(err)
	config.LocalAPIEndpoint.AdvertiseAddress = n.address
	config.NodeRegistration.Name = n.name
	config.CertificatesDir = n.path("pki")
	config.Etcd.Local = &kubeadmapi.LocalEtcd{
		DataDir: n.path("data"),
		ExtraArgs: []kubeadmapi.Arg{
			{Name: "listen-client-urls", Value: fmt.Sprintf("https://%s:2379,https://%s:2379", n.local, n.address)},
			{Name: "listen-metrics-urls", Value: fmt.Sprintf("http://%s:2381", n.local)},
		},
		ServerCertSANs: []string{n.local},
	}
	n.config = config
	// kubeadm copies the certificate authorities to new nodes.
	if i > 0 {
		for _, name := range []string{constants.EtcdCACertName, constants.EtcdCAKeyName} {
			text, err := os.ReadFile(filepath.Join(nodes[0].path("pki"), name))
			check(err)
			check(os.MkdirAll(n.path("pki", "etcd"), 0o700))
			check(os.WriteFile(n.path("pki", name), text, 0o600))
		}
	}
	check(certs.CreatePKIAssets(config))
	return n
}

func (n *node) path(parts ...string) string {
	return filepath.Join(append([]string{n.directory}, parts...)...)
}

func (n *node) manifests() string              { return n.path("manifests") }
func (n *node) log() string                    { return n.path("log") }
func (n *node) clientURL() string              { return etcdutil.GetClientURL(&n.config.LocalAPIEndpoint) }
func (n *node) peerURL() string                { return etcdutil.GetPeerURL(&n.config.LocalAPIEndpoint) }
func (n *node) certificate(name string) string { return filepath.Join(n.config.CertificatesDir, name) }

// writeManifest writes the manifest of a server that `kubeadm init` and `kubeadm upgrade` make.
func (n *node) writeManifest() error {
	return etcdphase.CreateLocalEtcdStaticPodManifestFile(n.manifests(), "", n.name, &n.config.ClusterConfiguration,
		&n.config.LocalAPIEndpoint, false)
}

// pod returns the pod of the node's manifest.
func (n *node) pod() *corev1.Pod {
	pod, err := staticpod.ReadStaticPodFromDisk(constants.GetStaticPodFilepath(constants.Etcd, n.manifests()))
	check(err)
	return pod
}

// start runs the command of the node's manifest and reports the pod, like kubelet.
func (n *node) start() {
	pod := n.pod()
	check(etcdutil.CreateDataDirectory(n.config.Etcd.Local.DataDir))
	out, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	defer out.Close()
	command := pod.Spec.Containers[0].Command
	fmt.Fprintf(out, "%q\n", command)
	n.running = exec.Command(os.Getenv("GALLERY_SERVER"), command[1:]...)
	n.running.Stdout, n.running.Stderr = out, out
	check(n.running.Start())

	pod.Name += "-" + n.name
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := pods.Tracker().Add(pod); err != nil {
		check(pods.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace))
	}
}

// startWhenWritten starts the server when kubeadm has written the manifest.
func (n *node) startWhenWritten(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := os.Stat(constants.GetStaticPodFilepath(constants.Etcd, n.manifests())); err == nil {
			n.start()
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// kill ends the server with SIGKILL. Does nothing if it is not running.
func (n *node) kill() {
	if n.running != nil {
		n.running.Process.Kill()
		n.running.Wait()
		n.running = nil
	}
}

// delete ends the server and removes its pod, manifest and data, like `kubeadm reset`.
func (n *node) delete() {
	n.kill()
	check(os.RemoveAll(n.manifests()))
	check(os.RemoveAll(n.config.Etcd.Local.DataDir))
	check(pods.CoreV1().Pods(metav1.NamespaceSystem).Delete(context.Background(), constants.Etcd+"-"+n.name, metav1.DeleteOptions{}))
}

// probe makes the request of one of the pod's probes, as kubelet does.
func (n *node) probe(probe *corev1.Probe) error {
	action := probe.HTTPGet
	port := action.Port.IntValue()
	for _, p := range n.pod().Spec.Containers[0].Ports {
		if p.Name == action.Port.StrVal {
			port = int(p.ContainerPort)
		}
	}
	address := net.JoinHostPort(action.Host, strconv.Itoa(port))
	_, err := get(string(action.Scheme) + "://" + address + action.Path)
	return err
}

func (n *node) startup() error   { return n.probe(n.pod().Spec.Containers[0].StartupProbe) }
func (n *node) readiness() error { return n.probe(n.pod().Spec.Containers[0].ReadinessProbe) }
func (n *node) liveness() error  { return n.probe(n.pod().Spec.Containers[0].LivenessProbe) }

// healthy waits until all probes of all started servers succeed.
func healthy(t *testing.T) {
	t.Helper()
	for _, n := range nodes {
		if n.running == nil {
			continue
		}
		for _, f := range []func() error{n.startup, n.readiness, n.liveness} {
			eventually(t, time.Minute, f)
		}
	}
}

// get returns the reply to a request, or an error unless its status is 200.
func get(url string) (string, error) {
	client := http.Client{Timeout: 15 * time.Second}
	reply, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, reply.Status, text)
	}
	return string(text), err
}

// fromCluster returns kubeadm's client for the cluster.
func fromCluster(t *testing.T) *etcdutil.Client {
	t.Helper()
	client, err := etcdutil.NewFromCluster(pods, nodes[0].config.CertificatesDir)
	ok(t, err)
	return client
}

// apiClient returns a client for all started servers with the certificate of kube-apiserver.
func apiClient(t *testing.T) *clientv3.Client {
	t.Helper()
	tls, err := transport.TLSInfo{
		CertFile:      nodes[0].certificate(constants.APIServerEtcdClientCertName),
		KeyFile:       nodes[0].certificate(constants.APIServerEtcdClientKeyName),
		TrustedCAFile: nodes[0].certificate(constants.EtcdCACertName),
	}.ClientConfig()
	ok(t, err)
	var endpoints []string
	for _, n := range nodes {
		if n.running != nil {
			endpoints = append(endpoints, n.clientURL(), fmt.Sprintf("https://%s:2379", n.local))
		}
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: tls, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	ok(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}
