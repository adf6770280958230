package hostile_test

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// names is the only name server of this network: it answers as a test says.
type names struct {
	mu    sync.Mutex
	zone  map[string][][]netip.Addr // by name: the answers to the first question, the second, and so on; the last one stays
	asked map[string]int            // by name: questions for A, each of which comes with one for AAAA
}

func startNames(t *testing.T) *names {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	n := &names{zone: map[string][][]netip.Addr{}, asked: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if answer := n.answer(buf[:size]); answer != nil {
				conn.WriteToUDPAddrPort(answer, from) //nolint:errcheck // the asker asks again
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return n
}

// set says what a name is from now on: the answers to the coming questions, one after the other.
func (n *names) set(name string, answers ...[]netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.zone[name], n.asked[name] = answers, 0
}

func (n *names) answer(query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	n.mu.Lock()
	defer n.mu.Unlock()
	answers, known := n.zone[name]
	out := dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionAvailable: true}
	if !known {
		out.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, out)
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(q) != nil || b.StartAnswers() != nil {
		return nil
	}
	if known {
		nth := n.asked[name]
		if q.Type == dnsmessage.TypeA {
			n.asked[name]++
		}
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
		for _, a := range answers[min(nth, len(answers)-1)] {
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				err = b.AResource(h, dnsmessage.AResource{A: a.As4()})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				err = b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
			}
			if err != nil {
				return nil
			}
		}
	}
	message, err := b.Finish()
	if err != nil {
		return nil
	}
	return message
}
