package relay

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	p := Probe{
		Interfaces: []string{"lo"}, Routes: 2,
		Asked: []Asked{{"tcp", "192.0.2.1:443", GotUnreachable}, {"dns", "[2001:db8::1]:53", GotReply}, {"udp", "x", GotSilence}},
	}
	data, err := AppendProbe(nil, &p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"interfaces":["lo"],"routes":2,"asked":[{"how":"tcp","to":"192.0.2.1:443","got":"unreachable"},{"how":"dns","to":"[2001:db8::1]:53","got":"reply"},{"how":"udp","to":"x","got":"silence"}]}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
	back, err := ParseProbe(data)
	if err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("%+v, %v", back, err)
	}
	if got := fmt.Sprint(back.Answered()); got != "[dns [2001:db8::1]:53: reply]" {
		t.Error(got)
	}
}

func TestProbeRefusals(t *testing.T) {
	for _, bad := range []string{
		``, `[]`, `{}`,
		`{"interfaces":[],"routes":0,"asked":[]}`,
		`{"interfaces":[],"routes":-1,"asked":[{"how":"a","to":"b","got":"reply"}]}`,
		`{"interfaces":[1],"routes":0,"asked":[{"how":"a","to":"b","got":"reply"}]}`,
		`{"interfaces":[""],"routes":0,"asked":[{"how":"a","to":"b","got":"reply"}]}`,
		`{"interfaces":[],"routes":0,"asked":[{"how":"a","to":"b","got":"maybe"}]}`,
		`{"interfaces":[],"routes":0,"asked":[{"how":"a","to":"b"}]}`,
		`{"interfaces":[],"routes":0,"asked":[{"how":"a","to":"b","got":"reply","x":1}]}`,
		`{"interfaces":[],"routes":0,"asked":[{"how":"a","to":"b","got":"reply"}],"x":1}`,
		`{"interfaces":{},"routes":0,"asked":[{"how":"a","to":"b","got":"reply"}]}`,
		`{"interfaces":["` + strings.Repeat("x", 65) + `"],"routes":0,"asked":[{"how":"a","to":"b","got":"reply"}]}`,
		`{"interfaces":[],"routes":0,"asked":[` + strings.Repeat(`{"how":"a","to":"b","got":"reply"},`, 257) + `{"how":"a","to":"b","got":"reply"}]}`,
	} {
		if p, err := ParseProbe([]byte(bad)); err == nil {
			t.Errorf("%.80s was read as %+v", bad, p)
		}
	}
}
