package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"path/filepath"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
	"sallyport.dev/control"
	"sallyport.dev/errs"
)

// Backuper writes a consistent copy of the database to a new file.
type Backuper interface {
	Backup(ctx context.Context, path string, by control.Person) error
}

// backupName is the copy while it is sent. One name: what a killed control left is replaced by the next backup.
const backupName = "backup.tmp"

// Backup implements sallyport.v1.Operator. The copy travels to whoever asked: nobody names a path on control's machine.
func (o *operatorService) Backup(ctx context.Context, _ *sallyportv1.BackupRequest, stream sallyportv1connect.OperatorBackupServerStream) error {
	by := whoOf(ctx).Person
	if !o.s.backup.TryLock() {
		return errs.New(errs.Busy, "another backup is being made; try again when it is done")
	}
	defer o.s.backup.Unlock()
	path := filepath.Join(o.s.cfg.Dir, backupName)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return errs.Wrap(errs.Unavailable, "what an earlier backup left cannot be removed", err)
	}
	if err := o.s.stores.Backup.Backup(ctx, path, by); err != nil {
		return err
	}
	defer os.Remove(path)
	f, err := os.Open(path)
	if err != nil {
		return errs.Wrap(errs.Unavailable, "the backup cannot be read", err)
	}
	defer f.Close()
	return send(stream, f, sha256.New())
}

func send(stream sallyportv1connect.OperatorBackupServerStream, in io.Reader, sum hash.Hash) error {
	b := make([]byte, chunkBytes)
	for {
		n, err := io.ReadFull(in, b)
		if n > 0 {
			sum.Write(b[:n])
			if err := stream.Send(&sallyportv1.BackupResponse{Data: b[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return stream.Send(&sallyportv1.BackupResponse{Sha256: sum.Sum(nil)})
		case err != nil:
			return errs.Wrap(errs.Unavailable, "the backup cannot be read", err)
		}
	}
}

// PurgeCall implements sallyport.v1.Operator.
func (o *operatorService) PurgeCall(ctx context.Context, r *sallyportv1.PurgeCallRequest) (*sallyportv1.PurgeCallResponse, error) {
	by := whoOf(ctx).Person
	c, err := o.find(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	if err := o.s.stores.Calls.PurgeCall(ctx, c.ID, by); err != nil {
		return nil, err
	}
	return &sallyportv1.PurgeCallResponse{Call: callRow(c)}, nil
}
