package server

import (
	"bytes"
	"context"
	"io"
	"time"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/api/sallyport/v1/sallyportv1connect"
)

// Exporter writes the audit record as JSON lines, each in one Write.
type Exporter interface {
	Export(ctx context.Context, since time.Time, w io.Writer) error
	// Checkpoint is the newest signed checkpoint, or nil: hosts and workers keep it, and an exported record must contain it (audit verify --at-least).
	Checkpoint() []byte
	// PutWitness stores a countersignature of a checkpoint, which was checked. Errors: [errs.NotFound] for a checkpoint of another store.
	PutWitness(ctx context.Context, by string, checkpoint, signature []byte) error
}

// Export implements sallyport.v1.Operator: digests only, never a body.
func (o *operatorService) Export(ctx context.Context, r *sallyportv1.ExportRequest, stream sallyportv1connect.OperatorExportServerStream) error {
	since := time.Time{}
	if r.GetSinceMs() > 0 {
		since = time.UnixMilli(r.GetSinceMs())
	}
	return o.s.stores.Audit.Export(ctx, since, lineStream{stream})
}

type lineStream struct {
	stream sallyportv1connect.OperatorExportServerStream
}

// Write implements io.Writer: one line.
func (l lineStream) Write(p []byte) (int, error) {
	if err := l.stream.Send(&sallyportv1.ExportResponse{Line: bytes.TrimRight(p, "\n")}); err != nil {
		return 0, err
	}
	return len(p), nil
}
