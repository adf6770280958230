package shim

// appendResult appends the response to r with result, a checked CallToolResult: its bytes, with the members of the era and the projection of
// the client spliced in.
func appendResult(dst []byte, r *request, id, result []byte, build string) []byte {
	o := parseObject(result)
	r.projection.project(o)
	if r.era == modern {
		o.markModern(build)
	} else {
		o.markLegacy()
	}
	dst = appendResponse(dst, id)
	dst = o.append(dst)
	return append(dst, '}')
}

// markModern gives a result what 2026-07-28 wants in every one of them. What the upstream said in these places was about another hop.
func (o *object) markModern(build string) {
	if string(o.value("resultType")) != `"complete"` {
		o.set("resultType", `"complete"`)
	}
	info := string(appendServerInfo(nil, build))
	raw := o.value("_meta")
	if len(raw) == 0 || raw[0] != '{' {
		o.set("_meta", `{"`+metaServer+`":`+info+`}`)
		return
	}
	inner := parseObject(raw)
	inner.set(metaServer, info)
	o.edit("_meta", inner.changes()...)
}

// markLegacy takes out what only 2026-07-28 says.
func (o *object) markLegacy() {
	o.remove("resultType")
	if raw := o.value("_meta"); len(raw) > 0 && raw[0] == '{' {
		if inner := parseObject(raw); inner.has(metaServer) {
			inner.remove(metaServer)
			o.edit("_meta", inner.changes()...)
		}
	}
}
