package call

import (
	"strings"
	"sync"

	"sallyport.dev/control"
	"sallyport.dev/control/grant"
	"sallyport.dev/control/schema"
	"sallyport.dev/errs"
)

// checks keeps the compiled inputSchemas of reviewed tools. Safe for concurrent use; bounded by the catalogs that sessions are bound to.
type checks struct {
	mu  sync.RWMutex
	all map[checkKey]*check
}

type checkKey struct {
	catalog control.Digest
	tool    string
}

type check struct {
	schema *schema.Schema
	input  []byte // the schema's text
	err    error
}

const maxChecks = 8192

func (c *checks) get(catalog control.Digest, tool *control.Tool) *check {
	key := checkKey{catalog, tool.Name}
	c.mu.RLock()
	got := c.all[key]
	c.mu.RUnlock()
	if got != nil {
		return got
	}
	got = &check{input: grant.InputSchema(tool.Raw)}
	got.schema, got.err = schema.Compile(got.input)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= maxChecks {
		c.all = map[checkKey]*check{}
	}
	c.all[key] = got
	return got
}

// arguments validates a call's arguments against one reviewed tool. Errors: [errs.InvalidArguments], safe to show to the model.
func (k *check) arguments(tool *control.Tool, args []byte) error {
	if k.err != nil {
		return errs.Wrap(errs.InvalidArguments, "the reviewed schema of this tool cannot be checked, so nothing fits it", k.err)
	}
	if err := k.schema.Validate(args); err != nil {
		return err
	}
	if !tool.RefuseExtra {
		return nil
	}
	if extra := k.schema.Extra(args); len(extra) > 0 {
		return errs.New(errs.InvalidArguments, "the arguments may not have "+strings.Join(extra[:min(len(extra), 5)], ", "))
	}
	return nil
}
