// Package link is the host's end of its one long stream to control: hello and welcome, batches both ways, and a new stream whenever one is lost.
// It keeps nothing over a lost stream; what must be said again is its [Peer]'s to know.
package link

import (
	"context"

	sallyportv1 "sallyport.dev/api/sallyport/v1"
)

// Wire is the version of the frames. Control serves it and the one before.
const Wire = 1

// Link carries frames to control and back.
type Link interface {
	// Run keeps one stream at a time for p until ctx ends, and returns ctx's error.
	Run(ctx context.Context, p Peer) error
}

// Peer is who speaks over a link. Its methods are called for one stream at a time: Hello, Up, then Next and Receive from a goroutine each, then
// Down once both have returned.
type Peer interface {
	// Hello says what to send first. The link fills in the versions.
	Hello() *sallyportv1.HostHello
	// Up is called when control welcomed the host. What was sent before may or may not have arrived.
	Up(welcome *sallyportv1.Welcome)
	// Next returns the frames to send next, and waits until there are some. An error ends the stream.
	Next(ctx context.Context) ([]*sallyportv1.HostFrame, error)
	// Receive handles a batch. An error ends the stream: control broke the protocol.
	Receive(frames []*sallyportv1.ControlFrame) error
	// Down is called when the stream was lost.
	Down(err error)
}
