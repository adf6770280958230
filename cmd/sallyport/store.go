package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/errs"
)

type storeCmd struct {
	Backup        storeBackupCmd        `cmd:"" help:"Copy the database into a new file while it is in use. The copy holds no key."`
	AcceptRestore storeAcceptRestoreCmd `cmd:"" help:"Leave quarantine: you looked at what a restored copy lost."`
}

type storeBackupCmd struct {
	File string `arg:"" help:"A new file. - is standard output."`
}

// Run writes a copy of the database. Nobody but control opens the database: with control down, copy its directory instead.
func (c *storeBackupCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	out, keep, err := c.open(g)
	if err != nil {
		return err
	}
	n, sum, err := receiveBackup(ctx, api, out)
	if err := keep(err); err != nil {
		return err
	}
	if g.JSON && c.File != "-" {
		g.printJSON(map[string]any{"file": c.File, "bytes": n, "sha256": sum})
		return nil
	}
	g.note("%s: %d bytes, SHA-256 %s. It holds no key: keep those of control's state directory as well, in another place.", c.File, n, sum)
	return nil
}

// open opens the target. keep makes it last, or removes what is not whole.
func (c *storeBackupCmd) open(g *Globals) (out io.Writer, keep func(error) error, err error) {
	if c.File == "-" {
		return g.out, func(err error) error { return err }, nil
	}
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil, errs.Newf(errs.Conflict, "%s is there already; a backup never replaces a file", c.File)
	}
	if err != nil {
		return nil, nil, errs.Wrap(errs.NotAllowed, c.File+" cannot be written", err)
	}
	return f, func(err error) error {
		if err == nil {
			if err = f.Sync(); err != nil {
				err = errs.Wrap(errs.Unavailable, c.File+" cannot be written to the disk", err)
			}
		}
		f.Close()
		if err != nil {
			os.Remove(c.File)
		}
		return err
	}, nil
}

func receiveBackup(ctx context.Context, api sallyportv1connect.OperatorClient, out io.Writer) (n int64, sum string, err error) {
	stream, err := api.Backup(ctx, &sallyportv1.BackupRequest{})
	if err != nil {
		return 0, "", apiError(err)
	}
	defer stream.Close()
	h := sha256.New()
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) { // the stream's own end: one that is cut is io.ErrUnexpectedEOF
			return n, "", errs.New(errs.Unreachable, "control ended in the middle of the backup; try again")
		}
		if err != nil {
			return n, "", apiError(err)
		}
		if want := m.GetSha256(); len(want) > 0 {
			if !bytes.Equal(want, h.Sum(nil)) {
				return n, "", errs.New(errs.Internal, "the backup was damaged on its way; try again")
			}
			return n, hex.EncodeToString(want), nil
		}
		h.Write(m.GetData())
		n += int64(len(m.GetData()))
		if _, err := out.Write(m.GetData()); err != nil {
			return n, "", errs.Wrap(errs.Unavailable, "the backup cannot be written: "+err.Error(), err)
		}
	}
}

type storeAcceptRestoreCmd struct {
	Note string `required:"" help:"What was checked. It stays in the record."`
	Yes  bool   `help:"Do not ask."`
}

// Run leaves quarantine under a new incarnation.
func (c *storeAcceptRestoreCmd) Run(ctx context.Context, g *Globals) error {
	if err := g.confirm(ctx, c.Yes, "What this store does not know may have been sent already. Go on with it?"); err != nil {
		return err
	}
	api, err := g.client()
	if err != nil {
		return err
	}
	r, err := answer(api.AcceptRestore(ctx, &sallyportv1.AcceptRestoreRequest{Note: c.Note}))
	if err != nil {
		return err
	}
	g.note("Out of quarantine, incarnation %s.", r.GetIncarnation())
	g.note("Sessions were closed. Set each credential again (sallyport credentials list), give standing grants again, and look at uncertain calls: sallyport calls list --status uncertain")
	return nil
}
