package shim

import (
	"strings"

	"sallyport.dev/relay"
	"sallyport.dev/relay/strictjson"
)

// serverName stands in serverInfo.
const serverName = "sallyport"

// instructions are what a harness may put before its model.
const instructions = "Tools of your organization that run outside this sandbox, under its rules. A call may have to wait for a person: its result then says " +
	"so and how to wait. Results also say whether a call may be repeated: never repeat one whose outcome is uncertain."

// listTTL is how long a modern client may keep a list, in milliseconds. The list of a session is frozen, but clients may keep lists beyond it.
const listTTL = "60000"

// maxSubscriptions bounds the open ones of a pipe: each costs memory until it is cancelled.
const maxSubscriptions = 64

// request is one request with what its era says about it.
type request struct {
	message
	meta meta
	era  era
	// projection is that of the client that asks.
	projection projection
}

// request serves one request.
func (s *Server) request(m message, to answers) {
	fail := func(e *rpcError) { to.answer(appendError(nil, m.id, e), nil) }
	if s.open.has(idKey(m.id)) {
		// Under its own id the error would pass for the answer to the first request of that id.
		to.answer(appendError(nil, s.errorID(nil), newError(codeInvalidRequest, "a request of this id is open already; ids are unique among open requests")), nil)
		return
	}
	mt, e := parseMeta(m.params)
	if e != nil {
		fail(e)
		return
	}
	r := request{message: m, meta: mt}
	if r.era, e = decideEra(m.method, mt, s.handshake); e != nil {
		s.spoken = s.spoken || r.era == modern
		fail(e)
		return
	}
	if _, inBatch := to.(*batch); inBatch && r.era == modern {
		fail(newError(codeInvalidRequest, "revision "+modernVersion+" has no batches"))
		return
	}
	if r.era == modern {
		s.spoken = true
		r.projection = projectionFor(clientName(mt.client), modernVersion)
	} else {
		r.projection = projectionFor(s.client, s.version)
	}
	switch m.method {
	case "tools/call":
		s.callTool(&r, to)
		return
	case "tools/list":
		s.listTools(&r, to)
		return
	}
	if r.era == legacy {
		switch m.method {
		case "initialize":
			s.initialize(&r, to)
			return
		case "ping":
			to.answer(append(append(appendResponse(nil, m.id), "{}"...), '}'), nil)
			return
		}
	} else {
		switch m.method {
		case "server/discover":
			s.discover(&r, to)
			return
		case "subscriptions/listen":
			s.listen(&r, to)
			return
		}
	}
	// Prompts, resources, completion and logging are not advertised; 2026-07-28 has this code for a method whose capability is missing.
	fail(newError(codeMethodNotFound, "method not found: this server offers tools only"))
}

// instructions say what is wrong where nothing can be served: some harnesses show neither their model nor their user why there are no tools.
func (s *Server) instructions() string {
	if _, err := s.dir.now(); err != nil {
		s.logf("%v", err)
		return textNoTools(err)
	}
	return instructions
}

// initialize serves the handshake. A second one on the same pipe begins another conversation in the place of the first.
func (s *Server) initialize(r *request, to answers) {
	wanted, ok := member(r.params, "protocolVersion")
	version, isText := strictjson.Unquote(wanted)
	if !ok || !isText {
		to.answer(appendError(nil, r.id, newError(codeInvalidParams, "protocolVersion is a string")), nil)
		return
	}
	client, _ := member(r.params, "clientInfo")
	s.handshake, s.version, s.client = true, negotiate(version), clientName(client)
	out := append(appendResponse(nil, r.id), `{"protocolVersion":"`...)
	out = append(append(out, s.version...), `","capabilities":{"tools":{}},"serverInfo":`...)
	out = append(appendServerInfo(out, s.build), `,"instructions":`...)
	out = strictjson.AppendQuote(out, s.instructions())
	to.answer(append(out, '}', '}'), nil)
}

// discover serves server/discover. Only versions that a request's _meta may name are listed: the others need a handshake.
func (s *Server) discover(r *request, to answers) {
	out := append(appendResponse(nil, r.id), `{"resultType":"complete","supportedVersions":["`+modernVersion+`"],"capabilities":{"tools":{}},"instructions":`...)
	out = strictjson.AppendQuote(out, s.instructions())
	out = append(out, `,"ttlMs":`+listTTL+`,"cacheScope":"private","_meta":{"`+metaServer+`":`...)
	to.answer(append(appendServerInfo(out, s.build), '}', '}', '}'), nil)
}

// listen serves subscriptions/listen: acknowledged, with nothing honoured, because the tools of a session never change. It stays open until it
// is cancelled.
func (s *Server) listen(r *request, to answers) {
	filter, _ := member(r.params, "notifications")
	if len(filter) == 0 || filter[0] != '{' {
		to.answer(appendError(nil, r.id, newError(codeInvalidParams, "notifications is an object")), nil)
		return
	}
	if s.open.subscriptions() >= maxSubscriptions {
		to.answer(appendError(nil, r.id, newError(codeInvalidRequest, "too many subscriptions are open on this pipe")), nil)
		return
	}
	id := cloneBytes(r.id)
	if !s.open.add(&openRequest{id: id, key: idKey(id), answers: to, subscription: true}) {
		to.skip()
		return
	}
	out := append([]byte(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"`+metaSubscription+`":`), id...)
	s.out.line(append(out, `},"notifications":{}}}`...))
}

// appendSubscriptionEnd appends the response that ends a subscription from our side.
func appendSubscriptionEnd(dst, id []byte, build string) []byte {
	dst = append(appendResponse(dst, id), `{"resultType":"complete","_meta":{"`+metaSubscription+`":`...)
	dst = append(append(dst, id...), `,"`+metaServer+`":`...)
	return append(appendServerInfo(dst, build), '}', '}', '}')
}

// cancelled serves notifications/cancelled. Whatever does not name an open request is ignored, as the specification has it.
func (s *Server) cancelled(params []byte) {
	id, _ := member(params, "requestId")
	if !isID(id) {
		return
	}
	r := s.open.takeKey(idKey(id))
	if r == nil {
		return
	}
	if r.pending != nil {
		s.cancel(r.pending, relay.WhyHarness)
		r.stop()
	}
	r.answers.skip()
}

func appendServerInfo(dst []byte, build string) []byte {
	dst = strictjson.AppendQuote(append(dst, `{"name":"`+serverName+`","title":"Sallyport","version":`...), build)
	return append(dst, '}')
}

// clientName reads clientInfo.name, "" where there is none.
func clientName(info []byte) string {
	raw, _ := member(info, "name")
	name, _ := strictjson.Unquote(raw)
	return strings.ToLower(name)
}

// member returns a member's raw value; object may be nil or another kind of value.
func member(object []byte, name string) ([]byte, bool) { return strictjson.Lookup(object, name) }

func cloneBytes(b []byte) []byte { return append([]byte(nil), b...) }
