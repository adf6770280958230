package shim

import "sallyport.dev/relay"

// listTools serves tools/list: the tools of tools.json in its order, each with its own bytes. There is one page.
func (s *Server) listTools(r *request, to answers) {
	if cursor, ok := member(r.params, "cursor"); ok && string(cursor) != "null" {
		to.answer(appendError(nil, r.id, newError(codeInvalidParams, "unknown cursor: there is one page")), nil)
		return
	}
	tools, err := s.tools()
	if err != nil {
		// An empty list would be kept by some clients for good, and would tell nobody what is wrong.
		s.logf("tools/list: %v", err)
		to.answer(appendError(nil, r.id, newError(codeInternal, textNoTools(err))), nil)
		return
	}
	to.answer(appendToolList(nil, r, tools, s.build), nil)
}

// tools reads tools.json, and session.json too: a directory of another version is not served in parts.
func (s *Server) tools() ([]relay.Tool, error) {
	if _, err := s.dir.now(); err != nil {
		return nil, err
	}
	return s.dir.guest.Tools()
}

func appendToolList(dst []byte, r *request, tools []relay.Tool, build string) []byte {
	dst = append(appendResponse(dst, r.id), '{')
	if r.era == modern {
		dst = append(dst, `"resultType":"complete",`...)
	}
	dst = append(dst, `"tools":[`...)
	for i, t := range tools {
		if i > 0 {
			dst = append(dst, ',')
		}
		o := parseObject(t.Raw)
		if r.projection.hidesOutputSchema() {
			o.remove("outputSchema")
		}
		dst = o.append(dst)
	}
	dst = append(dst, ']')
	if r.era == modern {
		dst = append(dst, `,"ttlMs":`+listTTL+`,"cacheScope":"private","_meta":{"`+metaServer+`":`...)
		dst = append(appendServerInfo(dst, build), '}')
	}
	return append(dst, '}', '}')
}
