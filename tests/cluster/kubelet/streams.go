package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idleTimeout     = 4 * time.Hour
	creationTimeout = 30 * time.Second
)

// kubelet serves the paths that an API server asks of a kubelet.
type kubelet struct {
	pods *pods
	logs string
}

// serve starts the kubelet's HTTPS server. Its certificate is its own, as a kubelet's is that nobody has signed yet.
func serve(ctx context.Context, listener net.Listener, pods *pods, logs string) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	k := &kubelet{pods: pods, logs: logs}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", k.attach)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.portForward)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.containerLogs)
	// Upgrades need HTTP/1.1; without this, ServeTLS would offer HTTP/2.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Protocols: protocols,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// container is `namespace/pod/container` of the request if it runs; otherwise the request has been answered.
func (k *kubelet) container(w http.ResponseWriter, r *http.Request) (string, bool) {
	pod, ok := k.pods.find(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return "", false
	}
	name := r.PathValue("container")
	for _, container := range pod.Spec.Containers {
		if container.Name == name && !isAbsent(container) {
			return pod.Namespace + "/" + pod.Name + "/" + name, true
		}
	}
	http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
	return "", false
}

func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	container, ok := k.container(w, r)
	if !ok {
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, k, "", "", container, r.URL.Query()[corev1.ExecCommandParam], options,
		idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) attach(w http.ResponseWriter, r *http.Request) {
	container, ok := k.container(w, r)
	if !ok {
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, k, "", "", container, options,
		idleTimeout, creationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) portForward(w http.ResponseWriter, r *http.Request) {
	if _, ok := k.pods.find(r.PathValue("namespace"), r.PathValue("pod")); !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	// WebSocket clients name the ports in the query, SPDY clients in each stream.
	options := &portforward.V4Options{}
	if r.URL.Query().Has(corev1.PortHeader) {
		var err error
		if options, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", options, idleTimeout, creationTimeout, portforward.SupportedProtocols)
}

// containerLogs sends the log, and with follow everything that is added until the client is gone.
func (k *kubelet) containerLogs(w http.ResponseWriter, r *http.Request) {
	container, ok := k.container(w, r)
	if !ok {
		return
	}
	file, err := k.log(container)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	for {
		if _, err := io.Copy(w, file); err != nil || flusher.Flush() != nil || r.URL.Query().Get("follow") != "true" {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func (k *kubelet) log(container string) (*os.File, error) {
	path := k.logPath(container)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
}

func (k *kubelet) logPath(container string) string {
	return filepath.Join(k.logs, filepath.FromSlash(container))
}

// ExecInContainer runs the command here. $LOG is the container's log, $COLUMNS and $LINES are the terminal's size.
func (k *kubelet) ExecInContainer(ctx context.Context, _, _, container string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	log, err := k.log(container)
	if err != nil {
		return err
	}
	_ = log.Close()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "LOG="+k.logPath(container))
	if tty {
		size := <-resize
		cmd.Env = append(cmd.Env, fmt.Sprintf("COLUMNS=%d", size.Width), fmt.Sprintf("LINES=%d", size.Height))
	}
	cmd.Stdout, cmd.Stderr = writer(out), writer(errs)
	if tty {
		cmd.Stderr = cmd.Stdout
	}
	var stdin io.WriteCloser
	if in != nil {
		if stdin, err = cmd.StdinPipe(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if stdin != nil {
		// Not waited for: a command may end before its stdin does.
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: fmt.Errorf("exit status %d", exit.ExitCode()), Code: exit.ExitCode()}
	}
	return err
}

// writer hides a nil stream, which as an interface would not be nil.
func writer(stream io.WriteCloser) io.Writer {
	if stream == nil {
		return nil
	}
	return stream
}

// AttachContainer echoes stdin until its end. Without stdin there is nothing to see.
func (k *kubelet) AttachContainer(_ context.Context, _, _, container string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if out == nil {
		return errors.New("attach without stdout")
	}
	if _, err := fmt.Fprintf(out, "attached to %s\n", container); err != nil || in == nil {
		return err
	}
	_, err := io.Copy(out, in)
	return err
}

// PortForward copies between the stream and a local port, and passes each end's half-close on.
func (k *kubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer connection.Close()
	defer stream.Close()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}
