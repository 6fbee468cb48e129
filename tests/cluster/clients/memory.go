package main

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// version is the newest state of an object that an answer has shown.
type version struct {
	uid types.UID
	rv  uint64
}

// memory knows what has been shown of each object. Objects are expected to live as long as the program.
type memory struct {
	mu    sync.Mutex
	shown map[string]version
}

// see returns what is wrong with an answer, if anything is.
func (m *memory) see(key string, object *unstructured.Unstructured) string {
	rv, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return err.Error()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.shown[key]
	if known && before.uid != object.GetUID() {
		return fmt.Sprintf("another object: UID %s after %s", object.GetUID(), before.uid)
	}
	if known && rv < before.rv {
		return fmt.Sprintf("an older state: resource version %d after %d", rv, before.rv)
	}
	m.shown[key] = version{object.GetUID(), rv}
	return ""
}

// sentStatuses counts status writes by key where they leave the program.
type sentStatuses struct {
	mu    sync.Mutex
	byKey map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func (s *sentStatuses) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if path, ok := strings.CutSuffix(request.URL.Path, "/status"); ok && request.Method == http.MethodPut {
			// .../namespaces/NAMESPACE/RESOURCE/NAME
			parts := strings.Split(path, "/")
			key := parts[len(parts)-3] + "/" + parts[len(parts)-1]
			s.mu.Lock()
			s.byKey[key]++
			s.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

func (s *sentStatuses) all() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byKey)
}
