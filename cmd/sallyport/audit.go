package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/control/audit"
	"sallyport.dev/errs"
)

type auditCmd struct {
	Export auditExportCmd `cmd:"" help:"Write the record as JSON lines."`
	Verify auditVerifyCmd `cmd:"" help:"Check an exported record offline: every link, every signature."`
}

type auditExportCmd struct {
	Out string `help:"Where to write. Default: standard output." placeholder:"FILE"`
}

// Run exports the record.
func (c *auditExportCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	out := g.out
	if c.Out != "" {
		f, err := os.OpenFile(c.Out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return errs.Wrap(errs.NotAllowed, c.Out+" cannot be written; it must not exist yet", err)
		}
		defer f.Close()
		out = f
	}
	stream, err := api.Export(ctx, &sallyportv1.ExportRequest{})
	if err != nil {
		return apiError(err)
	}
	defer stream.Close()
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) { // the stream's own end: one that is cut is io.ErrUnexpectedEOF
			return nil
		}
		if err != nil {
			return apiError(err)
		}
		if _, err := out.Write(append(m.GetLine(), '\n')); err != nil {
			return err
		}
	}
}

type auditVerifyCmd struct {
	File    string   `arg:"" help:"An exported record, or - for standard input."`
	Keys    []string `help:"Files with control's public audit keys. Without one, links are checked and signatures are not trusted." placeholder:"FILE"`
	AtLeast string   `help:"It must reach at least this checkpoint, in base64 as a host or worker kept it." placeholder:"CHECKPOINT"`
}

// Run verifies an exported record.
func (c *auditVerifyCmd) Run(g *Globals) error {
	in := g.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return errs.Wrap(errs.NotFound, c.File+" cannot be read", err)
		}
		defer f.Close()
		in = f
	}
	var keys []ed25519.PublicKey
	for _, path := range c.Keys {
		b, err := os.ReadFile(path)
		if err != nil {
			return errs.Wrap(errs.NotFound, path+" cannot be read", err)
		}
		more, err := audit.ParsePublicKeys(b)
		if err != nil {
			return err
		}
		keys = append(keys, more...)
	}
	opts := audit.Options{Keys: keys}
	if c.AtLeast != "" {
		raw, err := base64.StdEncoding.DecodeString(c.AtLeast)
		if err != nil {
			return errs.Wrap(errs.Invalid, "the checkpoint is not base64", err)
		}
		signed, err := audit.DecodeSigned(raw)
		if err != nil {
			return err
		}
		opts.AtLeast = &signed
	}
	report, err := audit.Verify(in, opts)
	if err != nil {
		return err
	}
	if g.JSON {
		g.printJSON(report)
		return nil
	}
	fmt.Fprintf(g.out, "%d records in %d batches of %d runs, rows %d to %d, every link holds\n", report.Records, report.Batches, len(report.Runs), report.First, report.Last)
	fmt.Fprintf(g.out, "%d checkpoints and %d witnesses checked, %d without a key to check them; signed up to row %d\n", report.Checkpoints, report.Witnesses, report.Unchecked, report.Covered)
	return nil
}
