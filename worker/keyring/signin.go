package keyring

import (
	"encoding/binary"
	"strings"

	"sallyport.dev/errs"
	"sallyport.dev/intent"
	"sallyport.dev/intent/oauth"
	"sallyport.dev/intent/seal"
)

// Server is what a sign-in binds its credential to, beside the connection.
type Server struct{ Issuer, Token, ClientID, Account string }

// Grant opens the credential that an intent renews or ends, with what it is bound to. The caller wipes it. Errors: those of [Keyring.Credential].
func (k *Keyring) Grant(in *intent.Intent, sealed []byte) (seal.Bound, Secret, error) {
	secret, err := k.Credential(in, sealed)
	if err != nil {
		return seal.Bound{}, Secret{}, err
	}
	ad, err := seal.AssociatedData(sealed)
	if err != nil {
		return seal.Bound{}, Secret{}, err
	}
	bound, err := seal.ParseBound(ad) // proven: it was opened
	return bound, secret, err
}

// Client opens the secret of the client itself, of a version. It must be of the intent's connection. Errors: [errs.NotAllowed], [errs.Invalid].
func (k *Keyring) Client(in *intent.Intent, sealed []byte, version int64) (seal.Bound, Secret, error) {
	return k.own(in, sealed, oauth.ClientSubject, version)
}

// Certificate opens the certificate and key, in PEM, that the intent's connection shows. Errors: [errs.NotAllowed], [errs.Invalid].
func (k *Keyring) Certificate(in *intent.Intent, sealed []byte, version int64) (Secret, error) {
	_, secret, err := k.own(in, sealed, intent.CertificateSubject, version)
	return secret, err
}

// own opens what belongs to the intent's connection and to no account of it.
func (k *Keyring) own(in *intent.Intent, sealed []byte, subject string, version int64) (seal.Bound, Secret, error) {
	bound, secret, err := k.open(sealed)
	if err != nil {
		return seal.Bound{}, Secret{}, err
	}
	own := *in
	own.Subject, own.Version, own.AuthHeader, own.Account = subject, version, "", ""
	if err := bound.Covers(&own); err != nil {
		clear(secret)
		return seal.Bound{}, Secret{}, err
	}
	return bound, Secret{secret}, nil
}

// Seal seals what a sign-in led to, as a version of a credential of the intent's connection. The caller wipes secret. Errors: those of [seal.Seal].
func (k *Keyring) Seal(in *intent.Intent, subject string, version int64, at Server, secret []byte) ([]byte, error) {
	b := seal.Bound{
		Org: in.Org, Connection: in.Connection, Subject: subject, Version: version, Origin: in.Origin, PathPrefix: pathOf(in),
		Issuer: at.Issuer, TokenEndpoint: at.Token, ClientID: at.ClientID, Account: at.Account,
	}
	return seal.Seal(k.Public(), seal.Credential, b.Bytes(), secret)
}

// pathOf is the intent's path without its query.
func pathOf(in *intent.Intent) string {
	p, _, _ := strings.Cut(in.Path, "?")
	return p
}

// stateBound is what the state of a sign-in is bound to: the same connection at the same revision, for the same subject.
func stateBound(in *intent.Intent) []byte {
	return intent.Join("oauth state v1", []byte(in.Org), []byte(in.Connection), binary.BigEndian.AppendUint64(nil, uint64(in.Revision)),
		[]byte(in.Subject), []byte(in.Origin), []byte(in.Path))
}

// SealState seals what an exchange must agree with. Errors: those of [seal.Seal].
func (k *Keyring) SealState(in *intent.Intent, state []byte) ([]byte, error) {
	return seal.Seal(k.Public(), seal.OAuthState, stateBound(in), state)
}

// OpenState opens what [Keyring.SealState] sealed for the same connection and subject. The caller wipes it. Errors: [errs.NotAllowed], [errs.Invalid].
func (k *Keyring) OpenState(in *intent.Intent, sealed []byte) (Secret, error) {
	bound, state, err := k.key.Open(seal.OAuthState, sealed)
	if err != nil {
		return Secret{}, err
	}
	if string(bound) != string(stateBound(in)) {
		clear(state)
		return Secret{}, errs.New(errs.NotAllowed, "the sign-in began for another connection, or the connection changed meanwhile; begin again")
	}
	return Secret{state}, nil
}
