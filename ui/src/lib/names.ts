/** The rule for the names of topics and channels. */

export const NAME_PATTERN = "[.a-zA-Z0-9_\\-]{1,64}(#ephemeral)?";
export const NAME_RULE = "A name has 1 to 64 letters, digits, dots, dashes and underscores; it may end in #ephemeral.";
const MAX_LENGTH = 64;
const VALID = /^[.a-zA-Z0-9_-]+(#ephemeral)?$/;

export function isValidName(name: string): boolean {
  return name.length <= MAX_LENGTH && VALID.test(name);
}
